//! `sluicegate man DIR`: one manual page for each subcommand, for packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder that receives sluicegate.1, sluicegate-run.1 and so on; it is created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn write(args: &ManArgs) -> ExitCode {
    super::exit_code(write_pages(&args.dir).and_then(|pages| super::tell(&format!("{pages} pages\n"))).map(|()| true))
}

fn write_pages(dir: &Path) -> Result<usize> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut command = super::command();
    command.build();
    write_page(&command, dir)
}

/// The page of a command and those of its subcommands; returns their number.
fn write_page(command: &clap::Command, dir: &Path) -> Result<usize> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = dir.join(format!("{name}.1"));
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).title(name).render(&mut page);
    rendered.and_then(|()| fs::write(&path, page)).with_context(|| path.display().to_string())?;
    let mut pages = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages += write_page(below, dir)?;
    }
    Ok(pages)
}
