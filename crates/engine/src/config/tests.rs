//! What the configuration accepts, and how it refuses.

use super::*;

const NODE: &str = r#"
name = "a"
volume = "shop"
zones = ["127.0.0.1:7101"]
data = "/var/lib/u/a"
"#;

fn with(engine: &str) -> Result<Config, ConfigError> {
    Config::parse(&format!("{NODE}[engine]\n{engine}"))
}

fn refusal(engine: &str) -> String {
    with(engine).unwrap_err().to_string()
}

#[test]
fn the_example_is_a_configuration_and_shows_the_defaults() {
    let example = Config::parse(Config::example()).unwrap();
    let plain = with("kind = \"mariadb\"").unwrap();
    assert_eq!(example.engine, plain.engine);
    assert_eq!(example.memory, plain.memory);
}

#[test]
fn keys_of_the_other_kind_are_refused() {
    assert!(refusal("kind = \"mariadb\"\ncommand = [\"/bin/x\"]").contains("engine.command"));
    let command =
        "kind = \"command\"\ncommand = [\"/bin/x\"]\nready = [\"connects\", \"127.0.0.1:1\"]\n";
    assert!(with(command).is_ok());
    assert!(refusal(&format!("{command}bin = \"/usr/sbin\"")).contains("engine.bin"));
}

#[test]
fn a_command_says_how_it_is_started_and_found_ready() {
    assert!(refusal("kind = \"command\"").contains("engine.command"));
    assert!(refusal("kind = \"command\"\ncommand = [\"/bin/x\"]").contains("engine.ready"));
    assert!(
        refusal("kind = \"command\"\ncommand = [\"x\"]\nready = [\"/bin/y\"]").contains("absolute")
    );
    let wrong =
        "kind = \"command\"\ncommand = [\"/bin/x\"]\nready = [\"/bin/y\"]\nstop_signal = \"TERM\"";
    assert!(refusal(wrong).contains("SIGTERM"));
}

#[test]
fn unknown_keys_and_other_kinds_are_refused() {
    let unknown = with("kind = \"mariadb\"\nprot = 1").unwrap_err();
    assert_eq!(unknown.hint(), Some("Perhaps you mean \"port\"."));
    assert!(with("kind = \"oracle\"").is_err());
    assert!(refusal("kind = \"mariadb\"\nport = 0").contains("65535"));
}

#[test]
fn a_command_becomes_a_recipe() {
    let text = r#"
kind = "command"
command = ["/bin/server", "--dir", "{data}"]
ready = ["connects", "{run}/sock"]
private = ["tmp/"]
page_size = "64KiB"
"#;
    let recipe = with(text).unwrap().recipe(8192, "root").unwrap();
    assert_eq!(recipe.name, "server");
    assert_eq!(recipe.server.arguments, ["--dir", "/var/lib/u/a/volume"]);
    assert_eq!(
        recipe.ready,
        Ready::Connects("/var/lib/u/a/run/sock".to_owned())
    );
    assert!(recipe.warnings[0].contains("torn"));
}
