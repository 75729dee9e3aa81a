#!/usr/bin/env bash
# Builds rivulet-tiny (host/tiny), the server without the standard library, and prints its sizes.
# Usage: scripts/tiny.sh [build|clippy]. Ends with 0 and a line where Rust lacks the target.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

TARGET=x86_64-unknown-none
program=${CARGO_TARGET_DIR:-target}/$TARGET/tiny/rivulet-tiny
selected=(-p rivulet-tiny --bin rivulet-tiny --features program --profile tiny --target "$TARGET" --locked)

if [[ ! -d $(rustc --print target-libdir --target "$TARGET") ]]; then
  echo "rivulet-tiny is not built: Rust lacks the target $TARGET (rustup target add $TARGET)"
  exit 0
fi
case ${1:-build} in
  clippy) ${CARGO:-cargo} clippy "${selected[@]}" -- -D warnings ;;
  build)
    # It relocates nothing at its start, so its addresses are fixed.
    ${CARGO:-cargo} rustc "${selected[@]}" -- -C relocation-model=static
    size -A "$program" | awk '
      { size[$1] = $2 }
      END {
        printf "rivulet-tiny: %d bytes of code, %d of pages and constants, %d of memory\n",
          size[".text"], size[".rodata"], size[".data"] + size[".bss"]
      }'
    ;;
  *) echo "usage: scripts/tiny.sh [build|clippy]" >&2; exit 2 ;;
esac
