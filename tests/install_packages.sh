#!/bin/sh
# install_packages.sh WHO CHECK PACKAGE…: Debian packages that tests need, if the command CHECK fails
# and they may be installed: as root, or with sudo that asks nothing. Elsewhere this only says so, and
# the tests skip (in CI they fail).
who=$1 check=$2
shift 2
sh -c "$check" >/dev/null 2>&1 && exit 0
command -v apt-get >/dev/null 2>&1 || {
  echo "$who need $*, and there is no apt-get to install that with." >&2
  exit 0
}
sudo=""
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || {
    echo "$who need more; install it with: sudo apt-get install $*" >&2
    exit 0
  }
  sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq && $sudo apt-get install -qq -y --no-install-recommends "$@" >/dev/null ||
  echo "$* could not be installed; $who cannot run." >&2
exit 0
