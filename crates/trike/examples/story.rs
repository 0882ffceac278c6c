//! Generates text with the bundled model: `cargo run --release --example story`.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = trike::LanguageModel::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny"))?;
    let story = model.generate("Once upon a time", &trike::GenerateOptions::default())?;
    println!("Once upon a time{}", story.text);
    Ok(())
}
