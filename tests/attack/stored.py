"""Models, certificates, banks, states of runs and trees with other facts, headers, bits, sizes and
recipes: refused in words, or used."""

import tempfile
from pathlib import Path

import torch

from posterior_trees import Tree, load
from posterior_trees.guarantee.bank import Bank
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.certify import calibrate
from posterior_trees.models.build import build_predictor
from posterior_trees.models.card import describe_model
from posterior_trees.models.checkpoint import save_model
from posterior_trees.training.devices import make_fabric
from posterior_trees.training.run import Run
from posterior_trees.training.trainer import Trainer
from tests.attack import judge
from tests.mutants import mutants
from tests.tiny import make_blobs, make_recipe, make_tree


def promise(guarantee: Guarantee, tree: Tree) -> None:
    """All that is asked of a certificate."""
    assert repr(guarantee)
    guarantee.cut(tree, 0.9)
    guarantee.ball(tree, 0.9)
    guarantee.interval(tree, "ink", 0.9)
    guarantee.interval(tree, (0, 0, 3, 3), 0.9, chosen="after")
    guarantee.for_page(tree[0])


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """As many mutants of each."""
    torch.manual_seed(seed)
    recipe = make_recipe("network.steps=1", "network.doublings=1", "balancer.is_on=true")
    predictor, failed = build_predictor(recipe), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, tree = folder / "model.safetensors", folder / "tree.safetensors"
        about = {"input_brightness": [0.1, 0.9], "test": {"n": 8, "psnr": []}, **predictor.about}
        save_model(model, predictor, recipe, about)
        make_tree(2, 4)[0].save(tree)
        run, fabric = Run(folder / "run", recipe), make_fabric(recipe, "cpu", 1)
        trainer = Trainer(recipe, predictor, make_blobs(16), None, fabric, run)
        trainer.advance(0)
        trainer.save()
        certificate, bank = folder / "c.safetensors", folder / "b.safetensors"
        own = predictor.eval()(predictor.measure(make_blobs(2).batch([0, 1])[0]))
        found = calibrate(predictor, make_blobs(60), "image", ["ink"], (3, 3), bank=20)
        found.save(certificate)
        found.bank.save(bank)
        readers = {
            model: lambda: describe_model(load(model, device="cpu")),
            tree: lambda: Tree.load(tree).probs,
            run.state_file: trainer.resume,
            certificate: lambda: promise(Guarantee.load(certificate), own),
            bank: lambda: Bank.load(bank).interval(own, lambda image: image.mean().item(), 0.9),
        }
        tried = 0
        for file, read in readers.items():
            whole = file.read_bytes()
            for number, what in enumerate(
                mutants(file, folder / "mutant", count // len(readers), seed)
            ):
                file.write_bytes((folder / "mutant").read_bytes())
                failed += judge(read, f"{file.name} {number} ({what})")
                file.write_bytes(whole)
                tried += 1
    return tried, failed
