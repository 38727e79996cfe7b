//! The `Status` at the end of a session, on its error channel.

use serde_json::{Value, json};

use super::instance_streams::ExecExit;

/// The format that kubectl reads: it exits with the code in `details.causes`, and prints the message of any other failure.
pub(super) fn of_exit(exit: &ExecExit) -> Value {
    match exit {
        ExecExit::Code(0) | ExecExit::Detached => json!({ "metadata": {}, "status": "Success" }),
        ExecExit::Code(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        ExecExit::InstanceEnded => {
            internal("the command was killed because its instance ended; run it in another Pod of the Revision")
        }
    }
}

pub(super) fn idle() -> Value {
    internal("the session was idle for four hours and was closed; run the command again")
}

fn internal(message: &str) -> Value {
    json!({
        "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
        "message": format!("Internal error occurred: {message}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_the_cause_of_the_status() {
        assert_eq!(of_exit(&ExecExit::Code(0))["status"], "Success");
        let failed = of_exit(&ExecExit::Code(7));
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0], json!({ "reason": "ExitCode", "message": "7" }));
        assert_eq!(of_exit(&ExecExit::InstanceEnded)["code"], 500);
    }
}
