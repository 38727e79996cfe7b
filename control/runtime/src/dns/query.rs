//! Decides how a query is answered: values in, values out.

use std::net::{IpAddr, Ipv4Addr};

use contract::service_names::{SearchDomains, ServiceName as Meaning};
use contract::table::RoutingTable;
use simple_dns::rdata::{A, AAAA, CNAME, OPT, RData};
use simple_dns::{CLASS, Name, OPCODE, Packet, PacketFlag, QTYPE, Question, RCODE, ResourceRecord, TYPE};

use super::CLUSTER_DOMAIN;
use super::{ALIASES_MAX, QUERY_BYTES_MAX, TTL_S};

/// A head of twelve bytes comes before the question.
const HEAD_BYTES: usize = 12;
/// The maximum answer by UDP for a client that does not specify one.
const UDP_BYTES_MIN: usize = 512;
/// Our own maximum.
const UDP_BYTES: u16 = QUERY_BYTES_MAX as u16;

/// The action for a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DnsAction {
    Answer(Vec<u8>),
    /// It is the host's servers' to answer, as it is.
    Forward,
    /// It leads to this name, which is the host's servers' to look up: see [`follow`].
    FollowAlias(String),
    /// Not worth an answer: it is not a query, or has no room for an answer.
    Ignore,
}

/// What a name stands for.
enum NameResolution {
    Addresses(Vec<IpAddr>),
    Alias(String),
    NotFound,
}

/// Judges a query by what the table knows; `domains` say where the Routes of a namespace are reached.
pub(super) fn decide(query: &[u8], table: &RoutingTable, domains: &SearchDomains) -> DnsAction {
    let Some(asked) = read(query) else { return DnsAction::Ignore };
    let [question] = &asked.questions[..] else { return DnsAction::Ignore };
    let mut host = question.qname.to_string().to_ascii_lowercase();
    if host == "localhost" || host.ends_with(".localhost") {
        return answer(&asked, &[], &[IpAddr::V4(Ipv4Addr::LOCALHOST)], RCODE::NoError);
    }
    let mut aliases = Vec::new();
    loop {
        if !is_cluster_name(&host) {
            return if aliases.is_empty() { DnsAction::Forward } else { DnsAction::FollowAlias(host) };
        }
        match resolve(table, &host, domains) {
            NameResolution::Addresses(all) => return answer(&asked, &aliases, &all, RCODE::NoError),
            NameResolution::Alias(other) if aliases.len() < ALIASES_MAX => {
                aliases.push(other.clone());
                host = other;
            }
            NameResolution::Alias(_) | NameResolution::NotFound => {
                return answer(&asked, &[], &[], RCODE::NameError);
            }
        }
    }
}

/// The query for `name` that `query` leads to.
pub(super) fn alias_query(query: &[u8], name: &str) -> Option<Vec<u8>> {
    let asked = read(query)?;
    let mut further = Packet::new_query(asked.id());
    further.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = asked.questions.first()?;
    further.questions = vec![Question::new(Name::new(name).ok()?, question.qtype, question.qclass, false)];
    further.build_bytes_vec().ok()
}

/// The answer to `query`, given `reply` to what it leads to.
pub(super) fn alias_answer(query: &[u8], name: &str, reply: &[u8]) -> Option<Vec<u8>> {
    let (asked, found) = (read(query)?, Packet::parse(reply).ok()?);
    let mut answer = new_answer(&asked, found.rcode());
    let own = asked.questions.first()?.qname.clone();
    answer.answers = vec![record(own, RData::CNAME(CNAME(Name::new(name).ok()?)))];
    answer.answers.extend(found.answers);
    answer.build_bytes_vec_compressed().ok()
}

/// None of the host's servers answered.
pub(super) fn server_failure(query: &[u8]) -> Option<Vec<u8>> {
    new_answer(&read(query)?, RCODE::ServerFailure).build_bytes_vec_compressed().ok()
}

/// `answer` as it may be sent by UDP: an answer that is too long says only that it is.
pub(super) fn truncate_for_udp(query: &[u8], answer: Vec<u8>) -> Vec<u8> {
    let Some(asked) = read(query) else { return answer };
    let most = asked.opt().map_or(UDP_BYTES_MIN, |opt| usize::from(opt.udp_packet_size).max(UDP_BYTES_MIN));
    if answer.len() <= most {
        return answer;
    }
    let mut short = new_answer(&asked, RCODE::NoError);
    short.set_flags(PacketFlag::TRUNCATION);
    short.build_bytes_vec_compressed().unwrap_or_default()
}

/// A query with one question and only its options; anything else is not answered here.
fn read(query: &[u8]) -> Option<Packet<'_>> {
    let counts = query.get(4..HEAD_BYTES).filter(|_| query.len() <= QUERY_BYTES_MAX)?;
    // Checked before anything is made room for: one question, no answers, no authorities, a few options.
    if !matches!(counts, [0, 1, 0, 0, 0, 0, 0, 0..=2]) {
        return None;
    }
    let packet = Packet::parse(query).ok()?;
    let is_query = !packet.has_flags(PacketFlag::RESPONSE) && packet.opcode() == OPCODE::StandardQuery;
    is_query.then_some(packet)
}

/// Names below the cluster's domain are answered only here.
fn is_cluster_name(host: &str) -> bool {
    host.strip_suffix(CLUSTER_DOMAIN).is_some_and(|front| front.is_empty() || front.ends_with('.'))
}

fn resolve(table: &RoutingTable, host: &str, domains: &SearchDomains) -> NameResolution {
    if let Some(address) = own_address(host, domains) {
        return NameResolution::Addresses(vec![address.into()]);
    }
    if table.hosts.get(host).is_some() {
        let address = host.split('.').nth(1).and_then(|namespace| domains.address(namespace));
        return address.map_or(NameResolution::NotFound, |address| NameResolution::Addresses(vec![address.into()]));
    }
    match table.names.get(host) {
        Some(Meaning::Alias(other)) => NameResolution::Alias(other.to_string()),
        Some(Meaning::Endpoints(ports)) => {
            let mut all: Vec<IpAddr> = ports.iter().flat_map(|(_, places)| places.iter().map(|at| at.ip())).collect();
            all.sort_unstable();
            all.dedup();
            NameResolution::Addresses(all)
        }
        // A namespace, and what is above it, is there without having an address.
        None if host == CLUSTER_DOMAIN || host.strip_suffix(CLUSTER_DOMAIN) == Some("svc.") => {
            NameResolution::Addresses(Vec::new())
        }
        None => NameResolution::NotFound,
    }
}

/// That of a core Service whose ports are open at an address of its own.
fn own_address(host: &str, domains: &SearchDomains) -> Option<Ipv4Addr> {
    let (service, namespace) = host.strip_suffix(CLUSTER_DOMAIN)?.strip_suffix(".svc.")?.split_once('.')?;
    domains.service(namespace, service)
}

fn answer(asked: &Packet<'_>, aliases: &[String], all: &[IpAddr], code: RCODE) -> DnsAction {
    let mut answer = new_answer(asked, code);
    answer.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    let Some(question) = asked.questions.first() else { return DnsAction::Ignore };
    let mut own = question.qname.clone();
    for alias in aliases {
        let Ok(next) = Name::new(alias) else { return DnsAction::Ignore };
        answer.answers.push(record(own, RData::CNAME(CNAME(next.clone()))));
        own = next;
    }
    for address in all {
        match (address, question.qtype) {
            (IpAddr::V4(ip), QTYPE::TYPE(TYPE::A) | QTYPE::ANY) => {
                answer.answers.push(record(own.clone(), RData::A(A { address: (*ip).into() })));
            }
            (IpAddr::V6(ip), QTYPE::TYPE(TYPE::AAAA) | QTYPE::ANY) => {
                answer.answers.push(record(own.clone(), RData::AAAA(AAAA { address: (*ip).into() })));
            }
            _ => {}
        }
    }
    answer.build_bytes_vec_compressed().map_or(DnsAction::Ignore, DnsAction::Answer)
}

fn new_answer<'a>(asked: &Packet<'a>, code: RCODE) -> Packet<'a> {
    let mut answer = Packet::new_reply(asked.id());
    answer.questions.clone_from(&asked.questions);
    answer.set_flags(PacketFlag::RECURSION_AVAILABLE);
    if asked.has_flags(PacketFlag::RECURSION_DESIRED) {
        answer.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    *answer.rcode_mut() = code;
    if asked.opt().is_some() {
        *answer.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: UDP_BYTES, version: 0 });
    }
    answer
}

fn record<'a>(name: Name<'a>, data: RData<'a>) -> ResourceRecord<'a> {
    ResourceRecord::new(name, CLASS::IN, TTL_S, data)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contract::service_names::ServiceNames;
    use contract::table::Route;
    use proptest::prelude::*;

    use super::*;

    fn table() -> RoutingTable {
        let mut table = RoutingTable::default();
        let route = || Arc::new(Route::to_addresses("x", &["127.0.0.1:1".parse().unwrap()]));
        table.hosts.insert("app.ns.svc.cluster.local", route());
        table.hosts.insert("app.example.com", route());
        let mut names = ServiceNames::default();
        let at = |text: &str| text.parse().unwrap();
        let ports = vec![(80, vec![at("10.0.0.1:80"), at("[fd00::1]:80")]), (81, vec![at("10.0.0.1:81")])];
        names.insert("db.ns.svc.cluster.local", Meaning::Endpoints(ports));
        names.insert("out.ns.svc.cluster.local", Meaning::Alias("db.example.com".into()));
        names.insert("in.ns.svc.cluster.local", Meaning::Alias("db.ns.svc.cluster.local".into()));
        names.insert("ring.ns.svc.cluster.local", Meaning::Alias("ring.ns.svc.cluster.local".into()));
        table.names = Arc::new(names);
        table
    }

    fn query(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(77);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        let question = Question::new(Name::new(name).unwrap(), QTYPE::TYPE(kind), CLASS::IN.into(), false);
        packet.questions.push(question);
        packet.build_bytes_vec().unwrap()
    }

    /// The code and the records of an answer, as words.
    fn records_of(answer: &[u8]) -> (RCODE, Vec<String>) {
        let packet = Packet::parse(answer).unwrap();
        assert_eq!(packet.id(), 77);
        assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
        let word = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::A(a) => Ipv4Addr::from(a.address).to_string(),
            RData::AAAA(a) => std::net::Ipv6Addr::from(a.address).to_string(),
            RData::CNAME(name) => format!("{} is {}", record.name, name.0),
            other => format!("{other:?}"),
        };
        (packet.rcode(), packet.answers.iter().map(word).collect())
    }

    #[test]
    fn service_with_ports_of_its_own_has_its_own_address() {
        let domains = SearchDomains::default();
        let of = |name: &str| match decide(&query(name, TYPE::A), &table(), &domains) {
            DnsAction::Answer(answer) => records_of(&answer).1,
            other => panic!("{other:?}"),
        };
        for (service, before) in [("app", "127.64.0.1"), ("db", "10.0.0.1")] {
            let name = format!("{service}.ns.svc.cluster.local");
            assert_eq!(of(&name)[0], before);
            domains.set_service("ns", service, Some(Ipv4Addr::new(127, 80, 0, 9)));
            assert_eq!(of(&name), ["127.80.0.9"]);
            domains.set_service("ns", service, None);
            assert_eq!(of(&name)[0], before);
        }
    }

    /// SRV-VOL-30: what is called by its name inside is found, and what is not there is denied at once.
    #[test]
    fn a_name_of_the_cluster_is_answered_from_the_table() {
        let table = table();
        for (name, kind, wanted) in [
            ("app.ns.svc.cluster.local", TYPE::A, Ok(&["127.64.0.1"][..])),
            ("APP.ns.svc.Cluster.local", TYPE::A, Ok(&["127.64.0.1"])),
            ("app.ns.svc.cluster.local", TYPE::AAAA, Ok(&[])),
            ("db.ns.svc.cluster.local", TYPE::A, Ok(&["10.0.0.1"])),
            ("db.ns.svc.cluster.local", TYPE::AAAA, Ok(&["fd00::1"])),
            ("db.ns.svc.cluster.local", TYPE::MX, Ok(&[])),
            (
                "in.ns.svc.cluster.local",
                TYPE::A,
                Ok(&["in.ns.svc.cluster.local is db.ns.svc.cluster.local", "10.0.0.1"]),
            ),
            ("svc.cluster.local", TYPE::A, Ok(&[])),
            ("app.example.com.ns.svc.cluster.local", TYPE::A, Err(())),
            ("nobody.ns.svc.cluster.local", TYPE::A, Err(())),
            ("ring.ns.svc.cluster.local", TYPE::A, Err(())),
            ("a.localhost", TYPE::A, Ok(&["127.0.0.1"])),
            ("localhost", TYPE::AAAA, Ok(&[])),
        ] {
            let DnsAction::Answer(answer) = decide(&query(name, kind), &table, &SearchDomains::default()) else {
                panic!("{name}")
            };
            let (code, records) = records_of(&answer);
            match wanted {
                Ok(wanted) => assert_eq!((code, &records[..]), (RCODE::NoError, &own(wanted)[..]), "{name}"),
                Err(()) => assert_eq!((code, records.len()), (RCODE::NameError, 0), "{name}"),
            }
        }
    }

    fn own(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn all_other_names_are_the_hosts() {
        let table = table();
        for name in ["example.com", "app.example.com", "notcluster.local", "local", "xcluster.local"] {
            assert_eq!(decide(&query(name, TYPE::A), &table, &SearchDomains::default()), DnsAction::Forward, "{name}");
        }
    }

    /// SRV-VOL-30: an ExternalName is looked up where the host looks names up.
    #[test]
    fn a_name_that_leads_outside_is_answered_with_what_is_found_there() {
        let asked = query("out.ns.svc.cluster.local", TYPE::A);
        let DnsAction::FollowAlias(other) = decide(&asked, &table(), &SearchDomains::default()) else {
            panic!("not followed")
        };
        assert_eq!(other, "db.example.com");
        let further = alias_query(&asked, &other).unwrap();
        assert_eq!(Packet::parse(&further).unwrap().questions[0].qname.to_string(), "db.example.com");

        let mut reply = Packet::parse(&further).unwrap().into_reply();
        let name = Name::new("db.example.com").unwrap();
        reply.answers.push(record(name, RData::A(A { address: Ipv4Addr::new(192, 0, 2, 1).into() })));
        let answer = alias_answer(&asked, &other, &reply.build_bytes_vec().unwrap()).unwrap();
        let (code, records) = records_of(&answer);
        assert_eq!((code, records.len()), (RCODE::NoError, 2));
        assert_eq!(records, ["out.ns.svc.cluster.local is db.example.com", "192.0.2.1"]);
        assert_eq!(records_of(&server_failure(&asked).unwrap()), (RCODE::ServerFailure, vec![]));
    }

    #[test]
    fn a_long_answer_is_cut_by_udp_unless_the_client_takes_it() {
        let mut asked = query("db.ns.svc.cluster.local", TYPE::A);
        let long = vec![0; 600];
        let cut = truncate_for_udp(&asked, long.clone());
        assert!(Packet::parse(&cut).unwrap().has_flags(PacketFlag::TRUNCATION));
        let mut packet = Packet::parse(&asked).unwrap();
        *packet.opt_mut() = Some(OPT { opt_codes: Vec::new(), udp_packet_size: 1232, version: 0 });
        asked = packet.build_bytes_vec().unwrap();
        assert_eq!(truncate_for_udp(&asked, long.clone()), long);
        let DnsAction::Answer(answer) = decide(&asked, &table(), &SearchDomains::default()) else {
            panic!("not answered")
        };
        assert!(Packet::parse(&answer).unwrap().opt().is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// No bytes make the name server do more than leave them alone.
        #[test]
        fn hostile_bytes_are_survived(
            mut bytes in prop::collection::vec(any::<u8>(), 0..600),
            shaped in any::<bool>(), at in any::<usize>(), with in any::<u8>(),
        ) {
            if shaped {
                let mut good = query("in.ns.svc.cluster.local", TYPE::A);
                let place = at % good.len();
                good[place] = with;
                good.extend(bytes.iter().take(with.into()));
                bytes = good;
            }
            let table = table();
            drop(decide(&bytes, &table, &SearchDomains::default()));
            drop(alias_query(&bytes, "x.example.com"));
            drop(server_failure(&bytes));
            drop(alias_answer(&query("out.ns.svc.cluster.local", TYPE::A), "x.example.com", &bytes));
            drop(truncate_for_udp(&bytes, vec![0; 2_000]));
        }
    }
}
