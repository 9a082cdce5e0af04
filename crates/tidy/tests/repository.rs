//! The checks, run on this repository. `UPDATE=1` lowers the list of exceptions and rewrites the reference and the index of hazards.

use std::sync::{Mutex, OnceLock};

use tidy::exceptions::{Comparison, Counts, Exceptions, Groups, compare_counts, compare_groups};
use tidy::tree::Repository;
use tidy::wording::Places;
use tidy::{
    circles, figures, hazards, lengths, links, mentions, messages, reference, sentences, wording,
};

/// Most places that a message lists for each area.
const MOST_LISTED: usize = 10;

fn repository() -> &'static Repository {
    static READ: OnceLock<Repository> = OnceLock::new();
    READ.get_or_init(|| Repository::read().expect("the repository can be read"))
}

fn updates() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

/// Compares with the list, which other tests of this process may be lowering.
fn with_list<T>(
    compare: impl FnOnce(&Exceptions) -> Comparison<T>,
    put: impl FnOnce(&mut Exceptions, &T),
) -> Vec<String> {
    static LIST: Mutex<()> = Mutex::new(());
    let guard = LIST.lock();
    let mut list = Exceptions::read(&repository().root).expect("exceptions.toml is TOML");
    let comparison = compare(&list);
    if updates() {
        put(&mut list, &comparison.lowered);
        list.write().expect("exceptions.toml can be written");
    }
    drop(guard);
    let is_stale = |complaint: &String| complaint.ends_with("remove it from the list");
    let complaints = comparison.complaints.into_iter();
    complaints
        .filter(|complaint| !updates() || !is_stale(complaint))
        .collect()
}

/// Compares numbers with the list. A check without a section is new: `UPDATE=1` makes its list.
fn counted(check: &str, found: &Counts, unit: &str) -> Vec<String> {
    with_list(
        |list| match list.counts(check) {
            None if updates() => Comparison {
                complaints: Vec::new(),
                lowered: found.clone(),
            },
            allowed => compare_counts(found, &allowed.unwrap_or_default(), unit),
        },
        |list, lowered| list.put_counts(check, lowered),
    )
}

fn grouped(check: &str, found: &Groups) -> Vec<String> {
    with_list(
        |list| match list.groups(check) {
            None if updates() => Comparison {
                complaints: Vec::new(),
                lowered: found.clone(),
            },
            allowed => compare_groups(found, &allowed.unwrap_or_default()),
        },
        |list, lowered| list.put_groups(check, lowered),
    )
}

/// Adds the places of each area that a complaint begins with.
fn explained(complaints: Vec<String>, places: &Places) -> Vec<String> {
    let explain = |complaint: String| {
        let area = complaint.split(':').next().unwrap_or_default();
        let listed = places.get(area).into_iter().flatten().take(MOST_LISTED);
        let lines = listed.map(|place| format!("\n    {place}"));
        complaint.clone() + &lines.collect::<String>()
    };
    complaints.into_iter().map(explain).collect()
}

fn nothing(what: &str, complaints: Vec<String>) {
    assert!(
        complaints.is_empty(),
        "{what}\n  {}\n",
        complaints.join("\n  ")
    );
}

/// Compares a generated page with the file, or writes it.
fn generated(place: &str, page: &str) {
    let path = repository().root.join(place);
    if updates() {
        let directory = path.parent().expect("it is in a directory");
        std::fs::create_dir_all(directory).expect("the directory can be made");
        std::fs::write(&path, page).expect("the page can be written");
        return;
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = page
        .lines()
        .find(|line| !written.lines().any(|other| other == *line));
    assert!(
        page == written,
        "{place} is out of date: UPDATE=1 cargo test -p tidy. First new line: {}",
        differs.unwrap_or("none; lines are missing or moved")
    );
}

#[test]
fn the_reference_is_what_the_structs_say() {
    let page = reference::page(repository()).unwrap_or_else(|error| panic!("{error}"));
    generated(reference::PAGE, &page);
}

#[test]
fn each_hazard_has_a_sentence_and_a_test() {
    match hazards::page(repository()) {
        Ok(page) => generated(hazards::PAGE, &page),
        Err(complaints) => nothing(
            "Hazards have a sentence in crates/tidy/hazards.toml, and a mark at a test:",
            complaints,
        ),
    }
}

#[test]
fn sentences_are_short() {
    let repository = repository();
    let too_long = sentences::too_long(&repository.documents);
    nothing(
        "Sentences of documents have more than 45 words. Make two of them, a list or a table:",
        too_long,
    );
    let found = sentences::long(&repository.documents);
    let counts = wording::counts(&found);
    let complaints = counted("sentences", &counts, "sentences of more than 30 words");
    nothing(
        "Documents have more long sentences than before:",
        explained(complaints, &found),
    );
}

#[test]
fn files_are_short() {
    let found = lengths::too_long(&repository().sources);
    let complaints = counted("lengths", &found, "lines");
    nothing(
        "A file has at most 500 lines. Move a part with a name of its own into a file of its own:",
        complaints,
    );
}

#[test]
fn files_do_not_import_each_other() {
    let found = circles::circles(&repository().sources);
    let complaints = grouped("circles", &found);
    nothing(
        "Modules of a crate use each other in a circle. Move what both need into a module below them:",
        complaints,
    );
}

#[test]
fn links_lead_somewhere() {
    let repository = repository();
    let dead = links::dead(&repository.documents, &repository.paths);
    nothing("Links of documents are dead:", dead);
}

#[test]
fn phrases_say_something() {
    let repository = repository();
    let found = wording::phrases(&repository.sources, &repository.documents);
    let complaints = counted("phrases", &wording::counts(&found), "phrases");
    nothing(
        "Messages and documents have phrases that say nothing (see tidy's wording.rs). Name the thing, its value, and \
         what is allowed:",
        explained(complaints, &found),
    );
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let found = wording::beginnings(&repository().sources);
    let complaints = counted("beginnings", &wording::counts(&found), "doc comments");
    nothing(
        "Doc comments begin with \"What\", \"Whether\" or \"Who\". Begin with the noun or the verb:",
        explained(complaints, &found),
    );
}

#[test]
fn comments_name_documents_that_exist() {
    let repository = repository();
    let absent = mentions::absent(&repository.sources, &repository.paths);
    nothing("Comments name documents that are not here:", absent);
}

#[test]
fn operators_find_each_message() {
    let repository = repository();
    let page = repository
        .documents
        .iter()
        .find(|document| document.path == messages::PAGE);
    let page = page.map_or("", |page| page.text.as_str());
    let complaints = messages::missing(&repository.sources, page);
    nothing(
        "docs/operate/troubleshooting.md lacks messages. Add a row with the message, what it means, and what to do, or \
         an exception to tidy's messages.rs if an operator cannot meet it:",
        complaints,
    );
}

#[test]
fn figures_are_those_of_the_results() {
    if let Err(said) = figures::check(&repository().root) {
        panic!("scripts/figures:\n{said}");
    }
}
