//! `rivulet-switch`, with the command line of simple_switch_grpc.

use std::process::ExitCode;

use rivulet_switch::flags::usage;
use rivulet_switch::options::{Action, parse};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let options = match parse(&words) {
        Ok(Action::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Ok(Action::Run(options)) => options,
        Err(e) => {
            eprintln!("Error while parsing command line arguments: {e}\n{}", usage());
            return ExitCode::FAILURE;
        }
    };
    match rivulet_switch::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("Error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
