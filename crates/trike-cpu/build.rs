//! Warns about a build without optimization, in which the kernels are up to 150 times slower.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=OPT_LEVEL");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0" || level == "1") {
        println!(
            "cargo::warning=this profile compiles Trike's kernels without optimization, up to 150 times slower: add \
             `[profile.dev.package.\"*\"]` and `opt-level = 3` to Cargo.toml, or build with --release"
        );
    }
}
