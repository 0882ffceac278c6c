#!/bin/sh
# Installs the trike command from the archives of a release.
#
#   sh install.sh --base-url URL [--target TRIPLE] [--to DIR]
#
# URL is the folder that holds SHA256SUMS and the archives: https://, http:// or file://. The variables TRIKE_BASE_URL,
# TRIKE_TARGET and TRIKE_INSTALL_DIR say the same. Nothing outside of DIR (default: ~/.local/bin) is changed.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# In a function, so that a script that was cut off in transit does nothing.
main() {
    base="${TRIKE_BASE_URL:-}"
    target="${TRIKE_TARGET:-}"
    to="${TRIKE_INSTALL_DIR:-}"
    while [ $# -gt 0 ]; do
        case "$1" in
            --base-url | --target | --to)
                [ $# -ge 2 ] || fail "$1 needs a value"
                case "$1" in
                    --base-url) base="$2" ;;
                    --target) target="$2" ;;
                    --to) to="$2" ;;
                esac
                shift 2
                ;;
            -h | --help)
                echo "usage: sh install.sh --base-url URL [--target TRIPLE] [--to DIR]"
                exit 0
                ;;
            *) fail "unknown argument $1; see --help" ;;
        esac
    done
    [ -n "$base" ] || fail "say where the release is: --base-url URL, the folder with SHA256SUMS and the archives"
    base="${base%/}"
    [ -n "$target" ] || target="$(this_machine)"
    if [ -z "$to" ]; then
        [ -n "${HOME:-}" ] || fail "HOME is not set; say where to install: --to DIR"
        to="$HOME/.local/bin"
    fi

    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM

    download "$base/SHA256SUMS" "$work/SHA256SUMS"
    # Lines are a digest, two spaces and a name.
    line="$(grep "  trike-[^ /]*-$target\.tar\.gz\$" "$work/SHA256SUMS")" ||
        fail "the release has no archive for $target; it has: $(sed -n 's/.*  trike-\(.*\)\.tar\.gz$/\1/p' "$work/SHA256SUMS" | tr '\n' ' ')"
    [ "$(echo "$line" | wc -l)" -eq 1 ] || fail "SHA256SUMS names more than one archive for $target"
    archive="${line##* }"
    download "$base/$archive" "$work/$archive"
    echo "$line" >"$work/expected"
    (cd "$work" && check expected) || fail "$archive: the checksum differs from SHA256SUMS; nothing was installed"

    tar -xzf "$work/$archive" -C "$work"
    folder="$work/${archive%.tar.gz}"
    command=trike
    [ ! -e "$folder/trike.exe" ] || command=trike.exe
    mkdir -p "$to"
    # Beside the old one and then in its place: a running command is never half written.
    cp "$folder/$command" "$to/.$command.new"
    chmod 755 "$to/.$command.new"
    mv -f "$to/.$command.new" "$to/$command"
    "$to/$command" --version >&2 || fail "$to/$command does not run on this machine"
    echo "installed $to/$command" >&2
    case ":$PATH:" in
        *":$to:"*) ;;
        *) echo "$to is not in PATH; add: export PATH=\"$to:\$PATH\"" >&2 ;;
    esac
    echo "shell completions: $command completions SHELL; manual pages: $command man DIR" >&2
}

# The target triple of this machine.
this_machine() {
    system="$(uname -s)"
    machine="$(uname -m)"
    case "$machine" in
        x86_64 | amd64) machine=x86_64 ;;
        aarch64 | arm64) machine=aarch64 ;;
        *) fail "there are no archives for $machine; build from source with: cargo install trike-cli" ;;
    esac
    case "$system" in
        Linux)
            # musl's ldd prints its name and fails.
            if (ldd --version 2>&1 || true) | grep -qi musl; then
                echo "$machine-unknown-linux-musl"
            else
                echo "$machine-unknown-linux-gnu"
            fi
            ;;
        Darwin) echo "$machine-apple-darwin" ;;
        MINGW* | MSYS* | CYGWIN*) echo "$machine-pc-windows-msvc" ;;
        *) fail "there are no archives for $system; build from source with: cargo install trike-cli" ;;
    esac
}

download() {
    case "$1" in
        file://*) cp "${1#file://}" "$2" || fail "cannot read $1" ;;
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 3 -o "$2" "$1" || fail "cannot download $1"
            elif command -v wget >/dev/null 2>&1; then
                wget -q -O "$2" "$1" || fail "cannot download $1"
            else
                fail "neither curl nor wget is installed"
            fi
            ;;
        *) fail "$1: expected a URL that begins with https://, http:// or file://" ;;
    esac
}

check() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum -c "$1" >/dev/null 2>&1
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 -c "$1" >/dev/null 2>&1
    else
        fail "neither sha256sum nor shasum is installed, so the archive cannot be verified"
    fi
}

main "$@"
