//! `sluicegate import`: copies the objects of a Knative cluster into a running appliance, and reports what differs there.
//!
//! Only what users wrote is copied: no object that another one owns, no status, no settings of the cluster. Each object is
//! applied by server-side apply, so a second run changes nothing, and what was changed in the appliance since is a conflict.

mod convert;
mod kinds;
mod references;
mod report;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::api_access::ApiAccessArgs;
use convert::ImportFilter;
use report::ImportReport;
use transfer::ImportSession;

#[derive(Debug, clap::Args)]
pub(crate) struct ClusterImportArgs {
    /// Kubeconfig of the cluster to copy from
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Copy from this namespace only; may be given more than once [default: all but those of Kubernetes and Knative]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Copy this Secret too, or with `NAMESPACE/*` all that are not of service accounts; may be given more than once
    #[arg(long, value_name = "NAMESPACE/NAME")]
    secret: Vec<String>,
    /// Report what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Overwrite what was changed in the appliance since an earlier import
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// The appliance to copy into.
#[derive(Debug, clap::Args)]
struct TargetArgs {
    /// Address of the appliance's API, as in the ready line of `sluicegate run`
    #[arg(long, value_name = "ADDR", value_parser = crate::config::address, env = "SLUICEGATE_API", default_value = "127.0.0.1:8001")]
    api: std::net::SocketAddr,
    /// Bearer token that identifies the user to the appliance
    #[arg(long, value_name = "TOKEN", env = "SLUICEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A kubeconfig of the appliance; takes precedence over --api and --token
    #[arg(long, value_name = "FILE")]
    to_kubeconfig: Option<PathBuf>,
}

/// Exit status 0: everything was copied. 1: an object was refused, or a server did not answer.
pub(crate) fn run(args: &ClusterImportArgs) -> ExitCode {
    super::exit_code(import(args))
}

fn import(args: &ClusterImportArgs) -> Result<bool> {
    let filter = ImportFilter::new(&args.namespace, &args.secret)?;
    let TargetArgs { api, token, to_kubeconfig } = &args.target;
    let session = ImportSession {
        source: ApiAccessArgs::of_kubeconfig(args.kubeconfig.clone()).open()?,
        target: ApiAccessArgs::new(*api, token.clone(), to_kubeconfig.clone()).open()?,
        dry_run: args.dry_run,
        force: args.force,
    };
    let mut report = ImportReport::new(args.dry_run);
    session.copy(&filter, &mut report)?;
    super::tell(&report.text())?;
    Ok(report.is_complete())
}
