//! Settings of the listeners for requests: trusted proxies, the PROXY protocol and error pages.

use std::path::PathBuf;
use std::str::FromStr;

use control::controllers::address_pool::AddressRanges;
use control::controllers::port_ranges::PortRanges;
use dataplane::core::ProxyProtocolListeners;
use dataplane::table::{ErrorPage, ErrorPages};
use dataplane::trusted_proxies::{Network, TrustedProxies};
use serde::Deserialize;

/// The settings, checked.
#[derive(Debug, Clone)]
pub(crate) struct GatewayConfig {
    pub(crate) trusted_proxies: TrustedProxies,
    /// They require trusted proxies.
    pub(crate) proxy_protocol: ProxyProtocolListeners,
    pub(crate) error_pages: Vec<ErrorPageRule>,
    /// The ports that Gateways may open.
    pub(crate) ports: PortRanges,
    /// The addresses of Gateways that name none.
    pub(crate) addresses: AddressRanges,
}

/// `CIDR[,CIDR...]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct NetworkList(Vec<Network>);

/// `LISTENER[,LISTENER...]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ProxyProtocolList(ProxyProtocolListeners);

/// `STATUS=FILE`: the body of responses of the appliance itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ErrorPageRule {
    /// `404`, or `5xx` for a class.
    pub(crate) statuses: String,
    pub(crate) file: PathBuf,
}

/// `any`, `none`, or `PORT[-PORT][,...]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PortRangesRule(PortRanges);

impl FromStr for PortRangesRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for PortRangesRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// `ADDRESS[-ADDRESS][,...]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct AddressRangesRule(AddressRanges);

impl FromStr for AddressRangesRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for AddressRangesRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for NetworkList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(|network| network.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for ProxyProtocolList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut listeners = ProxyProtocolListeners::default();
        for name in text.split(',').map(str::trim) {
            match name {
                "http" => listeners.http = true,
                "https" => listeners.https = true,
                _ => return Err(format!("{name:?} is neither http nor https")),
            }
        }
        Ok(Self(listeners))
    }
}

impl FromStr for ErrorPageRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (statuses, file) = text
            .split_once('=')
            .filter(|(_, file)| !file.is_empty())
            .ok_or_else(|| format!("{text:?} is not STATUS=FILE, like 404=/etc/sluicegate/404.html"))?;
        // The file is read later. The status is checked here, so that the error names its flag.
        ErrorPages::default().add(statuses, ErrorPage { content_type: "", body: Default::default() })?;
        Ok(Self { statuses: statuses.to_owned(), file: file.into() })
    }
}

impl TryFrom<String> for NetworkList {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for ProxyProtocolList {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for ErrorPageRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl GatewayConfig {
    /// Checks the settings, of flags or of the file.
    pub(super) fn new(
        networks: Vec<NetworkList>,
        hops: Option<usize>,
        listeners: Vec<ProxyProtocolList>,
        error_pages: Vec<ErrorPageRule>,
        (ports, addresses): (Option<PortRangesRule>, Option<AddressRangesRule>),
    ) -> Result<Self, String> {
        let trusted_proxies = trusted_proxies(networks, hops)?;
        let proxy_protocol = proxy_protocol(listeners, &trusted_proxies)?;
        let PortRangesRule(ports) = ports.unwrap_or_default();
        let AddressRangesRule(addresses) = addresses.unwrap_or_default();
        Ok(Self { trusted_proxies, proxy_protocol, error_pages, ports, addresses })
    }
}

fn trusted_proxies(lists: Vec<NetworkList>, hops: Option<usize>) -> Result<TrustedProxies, String> {
    let networks: Vec<_> = lists.into_iter().flat_map(|NetworkList(networks)| networks).collect();
    match hops {
        Some(0) => Err("trusted-hops: 0 accepts nothing; leave out --trusted-proxies instead".to_owned()),
        Some(_) if networks.is_empty() => {
            Err("trusted-hops: give --trusted-proxies too, the networks of the proxies".to_owned())
        }
        _ => Ok(TrustedProxies::new(networks, hops)),
    }
}

/// Without trusted networks any peer could choose the client's address.
fn proxy_protocol(lists: Vec<ProxyProtocolList>, trusted: &TrustedProxies) -> Result<ProxyProtocolListeners, String> {
    let all = lists.into_iter().fold(ProxyProtocolListeners::default(), |all, ProxyProtocolList(one)| {
        ProxyProtocolListeners { http: all.http || one.http, https: all.https || one.https }
    });
    if all != ProxyProtocolListeners::default() && trusted.is_empty() {
        return Err("proxy-protocol: give --trusted-proxies too, the networks of the proxies that send it".to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_settings_require_trusted_networks() {
        let networks: NetworkList = "10.0.0.0/8, ::1".parse().unwrap();
        let trusted = trusted_proxies(vec![networks], Some(2)).unwrap();
        assert!(trusted.contains("10.1.1.1".parse().unwrap()));
        assert!(trusted_proxies(Vec::new(), Some(2)).is_err() && trusted_proxies(Vec::new(), None).is_ok());
        let both: ProxyProtocolList = "http, https".parse().unwrap();
        assert_eq!(proxy_protocol(vec![both], &trusted), Ok(ProxyProtocolListeners { http: true, https: true }));
        assert!(proxy_protocol(vec![both], &TrustedProxies::default()).unwrap_err().contains("--trusted-proxies"));
        assert!("events".parse::<ProxyProtocolList>().is_err() && "10.0.0.0/99".parse::<NetworkList>().is_err());
    }

    #[test]
    fn error_page_has_the_status_of_an_error() {
        let rule: ErrorPageRule = "5xx=/etc/5xx.html".parse().unwrap();
        assert_eq!((rule.statuses.as_str(), rule.file.to_str()), ("5xx", Some("/etc/5xx.html")));
        for bad in ["200=/a", "404", "404=", "=/a", "6xx=/a"] {
            assert!(bad.parse::<ErrorPageRule>().is_err(), "{bad}");
        }
    }
}
