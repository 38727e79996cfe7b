//! The addresses of Brokers and channels: plain, TLS, or both, as the operator configures.

use contract::table::EventsTransport;

use types::settings::EventingFeatures;
use types::shared::Addressable;

/// The flag of ConfigMap `config-features` that decides.
const TRANSPORT_ENCRYPTION: &str = "transport-encryption";

/// Why a status has no address.
pub const NO_LISTENER: &str = "TLSListenerNotConfigured";

/// The events listener that speaks TLS.
#[derive(Debug, Clone)]
pub struct EventsTlsListener {
    /// `https://127.0.0.1:8444`
    pub url_base: String,
    /// The CA certificate (PEM) of the address, as statuses show it.
    pub ca_certs: String,
}

/// The addresses in a status: the one that every client can use, and all of them where there are several.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusAddresses {
    pub primary: Option<Addressable>,
    pub all: Vec<Addressable>,
}

/// Or why there is no address.
pub type AddressesResult = Result<StatusAddresses, String>;

impl StatusAddresses {
    /// The audience that tokens for it must have.
    #[must_use]
    pub fn with_audience(mut self, audience: Option<&str>) -> Self {
        for address in self.primary.iter_mut().chain(&mut self.all) {
            address.audience = audience.map(str::to_owned);
        }
        self
    }
}

impl From<&str> for StatusAddresses {
    /// In the clear alone.
    fn from(url: &str) -> Self {
        Self { primary: Some(addressable("http", url.to_owned(), None)), all: Vec::new() }
    }
}

#[must_use]
pub fn event_schemes(features: &EventingFeatures) -> EventsTransport {
    match features.flag(TRANSPORT_ENCRYPTION) {
        "strict" => EventsTransport::Tls,
        "permissive" => EventsTransport::Either,
        _ => EventsTransport::Plain,
    }
}

/// Where the stream at `path` takes events in.
pub(crate) fn addresses(
    by: EventsTransport,
    plain: &str,
    tls: Option<&EventsTlsListener>,
    path: &str,
) -> AddressesResult {
    let plain = format!("{}{path}", plain.trim_end_matches('/'));
    let by_tls = |tls: &EventsTlsListener| {
        let url = format!("{}{path}", tls.url_base.trim_end_matches('/'));
        addressable("https", url, Some(tls.ca_certs.clone()))
    };
    match (by, tls) {
        (EventsTransport::Plain, _) | (EventsTransport::Either, None) => Ok(StatusAddresses::from(plain.as_str())),
        (EventsTransport::Either, Some(tls)) => {
            let plain = addressable("http", plain, None);
            Ok(StatusAddresses { primary: Some(plain.clone()), all: vec![by_tls(tls), plain] })
        }
        (EventsTransport::Tls, Some(tls)) => Ok(StatusAddresses { primary: Some(by_tls(tls)), all: vec![by_tls(tls)] }),
        (EventsTransport::Tls, None) => Err(format!(
            "{TRANSPORT_ENCRYPTION} is strict, and nothing takes events by TLS: start with --events-https ADDR"
        )),
    }
}

fn addressable(name: &str, url: String, ca_certs: Option<String>) -> Addressable {
    Addressable { name: Some(name.to_owned()), url: Some(url), ca_certs, audience: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X-FEA-05: the three modes as upstream has them; what must not go in the clear and cannot go otherwise has no
    /// address.
    #[test]
    fn each_mode_has_its_addresses() {
        let tls = EventsTlsListener { url_base: "https://h:2".into(), ca_certs: "pem".into() };
        let reported = |by, tls| {
            let found = addresses(by, "http://h:1", tls, "/p")?;
            let url = |address: &Addressable| address.url.clone().unwrap();
            Ok::<_, String>((found.primary.as_ref().map(url).unwrap(), found.all.iter().map(url).collect::<Vec<_>>()))
        };
        let (plain, secure) = ("http://h:1/p".to_owned(), "https://h:2/p".to_owned());
        assert_eq!(reported(EventsTransport::Plain, Some(&tls)), Ok((plain.clone(), vec![])));
        assert_eq!(reported(EventsTransport::Either, None), Ok((plain.clone(), vec![])));
        assert_eq!(reported(EventsTransport::Either, Some(&tls)), Ok((plain.clone(), vec![secure.clone(), plain])));
        assert_eq!(reported(EventsTransport::Tls, Some(&tls)), Ok((secure.clone(), vec![secure])));
        assert!(reported(EventsTransport::Tls, None).unwrap_err().contains("--events-https"));

        let both = addresses(EventsTransport::Either, "http://h:1", Some(&tls), "/p").unwrap().with_audience(Some("x"));
        let all = || both.primary.iter().chain(&both.all);
        assert!(all().all(|address| address.audience.as_deref() == Some("x")));
        assert!(all().all(|address| address.ca_certs.is_some() == (address.name.as_deref() == Some("https"))));
    }
}
