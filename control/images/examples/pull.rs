//! Pulls one image into a store and says how long it took: `pull FOLDER REFERENCE`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use images::{Credentials, ImageStore, Reference, StoreOptions};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next_if(|verb| verb == images::unpack::VERB).is_some() {
        return images::unpack::unpack_child_main(words);
    }
    let (folder, reference) = (words.next().map(PathBuf::from), words.next().and_then(|text| text.into_string().ok()));
    let (Some(folder), Some(reference)) = (folder, reference) else {
        eprintln!("usage: pull FOLDER REFERENCE");
        return ExitCode::FAILURE;
    };
    match pull(&folder, &reference) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn pull(folder: &std::path::Path, reference: &str) -> Result<(), Box<dyn std::error::Error>> {
    let reference: Reference = reference.parse()?;
    let store = ImageStore::open(folder, StoreOptions::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let started = Instant::now();
    let image = runtime.block_on(store.ensure(&reference, &Credentials::anonymous()))?;
    println!(
        "{} {} {} layers {} bytes {:?}",
        image.reference,
        image.digest,
        image.layers.len(),
        image.bytes,
        started.elapsed()
    );
    Ok(())
}
