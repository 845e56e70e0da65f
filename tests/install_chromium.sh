#!/bin/sh
# Debian's Chromium for the browser tests, where it is missing and may be installed: as root, or
# with sudo that asks nothing. Elsewhere this only says so, and the tests skip (in CI they fail).
for name in chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
command -v apt-get >/dev/null 2>&1 || {
  echo "The browser tests need Chromium, and there is no apt-get to install it with." >&2
  exit 0
}
sudo=""
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || {
    echo "The browser tests need Chromium; install it with: sudo apt-get install chromium" >&2
    exit 0
  }
  sudo="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq && $sudo apt-get install -qq -y --no-install-recommends chromium >/dev/null ||
  echo "Chromium could not be installed; the browser tests cannot run." >&2
exit 0
