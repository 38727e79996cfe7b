//! Where Brokers and channels take events in: in the clear, by TLS, or both ways, as the operator has it.

use dataplane::table::EventsBy;

use super::world::World;
use crate::kinds::settings::EventFeatures;
use crate::kinds::shared::Addressable;

/// The flag of ConfigMap `config-features` that decides.
const TRANSPORT_ENCRYPTION: &str = "transport-encryption";

/// Why a status has no address.
pub const NO_LISTENER: &str = "NoTLSListener";

/// The events listener that speaks TLS.
#[derive(Debug, Clone)]
pub struct EventsTls {
    /// `https://127.0.0.1:8444`
    pub url_base: String,
    /// Who vouches for it (PEM), as statuses show it.
    pub ca_certs: String,
}

/// What a status says: the address that everybody can use, and all of them where there are several ways.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Addresses {
    pub first: Option<Addressable>,
    pub all: Vec<Addressable>,
}

/// Or why there is no address.
pub type Reach = Result<Addresses, String>;

impl Addresses {
    /// For those who bring tokens that are made out for it.
    #[must_use]
    pub fn for_audience(mut self, audience: Option<&str>) -> Self {
        for address in self.first.iter_mut().chain(&mut self.all) {
            address.audience = audience.map(str::to_owned);
        }
        self
    }
}

impl From<&str> for Addresses {
    /// In the clear alone.
    fn from(url: &str) -> Self {
        Self { first: Some(at("http", url.to_owned(), None)), all: Vec::new() }
    }
}

#[must_use]
pub fn events_by(features: &EventFeatures) -> EventsBy {
    match features.flag(TRANSPORT_ENCRYPTION) {
        "strict" => EventsBy::Tls,
        "permissive" => EventsBy::Either,
        _ => EventsBy::Plain,
    }
}

/// Of the stream at `path`.
pub fn of(world: &World, path: &str) -> Reach {
    let by = events_by(&world.settings().event_features);
    decide(by, &world.config.events_url_base, world.config.events_tls.as_ref(), path)
}

fn decide(by: EventsBy, plain: &str, tls: Option<&EventsTls>, path: &str) -> Reach {
    let plain = format!("{}{path}", plain.trim_end_matches('/'));
    let by_tls = |tls: &EventsTls| {
        let url = format!("{}{path}", tls.url_base.trim_end_matches('/'));
        at("https", url, Some(tls.ca_certs.clone()))
    };
    match (by, tls) {
        (EventsBy::Plain, _) | (EventsBy::Either, None) => Ok(Addresses::from(plain.as_str())),
        (EventsBy::Either, Some(tls)) => {
            let plain = at("http", plain, None);
            Ok(Addresses { first: Some(plain.clone()), all: vec![by_tls(tls), plain] })
        }
        (EventsBy::Tls, Some(tls)) => Ok(Addresses { first: Some(by_tls(tls)), all: vec![by_tls(tls)] }),
        (EventsBy::Tls, None) => Err(format!(
            "{TRANSPORT_ENCRYPTION} is strict, and nothing takes events by TLS: start with --events-https ADDR"
        )),
    }
}

fn at(name: &str, url: String, ca_certs: Option<String>) -> Addressable {
    Addressable { name: Some(name.to_owned()), url: Some(url), ca_certs, audience: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-FEA-05: the three modes as upstream has them; what must not go in the clear and cannot go otherwise has no
    /// address.
    #[test]
    fn each_mode_has_its_addresses() {
        let tls = EventsTls { url_base: "https://h:2".into(), ca_certs: "pem".into() };
        let told = |by, tls| {
            let found = decide(by, "http://h:1", tls, "/p")?;
            let url = |address: &Addressable| address.url.clone().unwrap();
            Ok::<_, String>((
                found.first.as_ref().map(url).unwrap(),
                found.all.iter().map(url).collect::<Vec<_>>(),
            ))
        };
        let (plain, secure) = ("http://h:1/p".to_owned(), "https://h:2/p".to_owned());
        assert_eq!(told(EventsBy::Plain, Some(&tls)), Ok((plain.clone(), vec![])));
        assert_eq!(told(EventsBy::Either, None), Ok((plain.clone(), vec![])));
        assert_eq!(told(EventsBy::Either, Some(&tls)), Ok((plain.clone(), vec![secure.clone(), plain])));
        assert_eq!(told(EventsBy::Tls, Some(&tls)), Ok((secure.clone(), vec![secure])));
        assert!(told(EventsBy::Tls, None).unwrap_err().contains("--events-https"));

        let both = decide(EventsBy::Either, "http://h:1", Some(&tls), "/p").unwrap().for_audience(Some("x"));
        let all = || both.first.iter().chain(&both.all);
        assert!(all().all(|address| address.audience.as_deref() == Some("x")));
        assert!(
            all().all(|address| address.ca_certs.is_some() == (address.name.as_deref() == Some("https")))
        );
    }
}
