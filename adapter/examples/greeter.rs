//! The smallest adapter: a configuration, one constructor, one loop, and a `main` of one call.
//!
//! `ADAPTER_RECEIVER='{"greetings": ["hello"]}' K_SINK=http://127.0.0.1:8099/ cargo run -p sluicegate-adapter --example greeter`

use adapter::{Context, Error, Event, Intake, NoSender, Receiver};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    greetings: Vec<String>,
}

struct Greeter(Config);

impl Receiver for Greeter {
    type Config = Config;
    type Token = ();

    fn new(config: Config, _: &Context) -> Result<Self, Error> {
        Ok(Greeter(config))
    }

    async fn receive(&mut self, intake: &mut Intake<()>) -> Result<(), Error> {
        intake.ready();
        for (number, greeting) in self.0.greetings.iter().enumerate() {
            let event = Event::new("dev.example.greeting", "/greeter", number.to_string());
            intake.push(event.with_data("text/plain", greeting.clone()), Some("greeting"), ());
        }
        intake.settle_all().await;
        Ok(())
    }
}

fn main() -> std::process::ExitCode {
    adapter::main::<Greeter, NoSender>()
}
