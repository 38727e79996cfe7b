//! What a platform has to tell its users, and where it stands.

/// The section of a document that begins with this heading.
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, from) = document.split_once(&format!("\n## {heading}\n")).expect("the section is there");
    from.split("\n## ").next().unwrap_or(from)
}

/// SRV-REQ-05, RT-USER-03, RT-FS-08: how names come to resolve, who an instance is that says nothing, and what is mounted beside
/// its volumes.
#[test]
fn what_users_have_to_know_is_told() {
    let serving = include_str!("../docs/serving.md");
    for (heading, told) in [
        ("Domains", ["`config-domain`", "`*.example.com. A ADDRESS`", "sslip.io"].as_slice()),
        ("What an instance is given", &["Without a `runAsUser` it runs as the user of the appliance"]),
        (
            "What an instance is given",
            &["`terminationMessagePath`", "/sys/fs/cgroup", "`/proc/sys`", "`/dev` of its own"],
        ),
        ("Names", &["`/etc/resolv.conf`"]),
    ] {
        for words in told {
            assert!(section(serving, heading).contains(words), "{heading}: {words}");
        }
    }
}
