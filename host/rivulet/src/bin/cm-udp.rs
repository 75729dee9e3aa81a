//! The `cm-udp` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rivulet_cli::cm_udp::main())
}
