//! `sluicegate completion SHELL`: subcommands and flags for the tabulator key.

use std::process::ExitCode;

use anyhow::Context as _;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Load it once:      source <(sluicegate completion bash)
For all sessions:  sluicegate completion bash > /etc/bash_completion.d/sluicegate
                   sluicegate completion zsh > \"${fpath[1]}/_sluicegate\"
                   sluicegate completion fish > ~/.config/fish/completions/sluicegate.fish")]
pub(crate) struct CompletionArgs {
    shell: Shell,
}

pub(crate) fn print(args: &CompletionArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "sluicegate", &mut script);
    let text = String::from_utf8(script).context("the completion script is not UTF-8");
    super::exit_code(text.and_then(|text| super::tell(&text)).map(|()| true))
}
