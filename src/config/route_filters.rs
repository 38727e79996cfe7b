//! The options of `--route` that change requests and responses, or refuse clients.

use control::publish::RouteFilterRule;
use dataplane::table::{HeaderChanges, PathRewrite};
use dataplane::trusted_proxies::Network;

/// These options, for messages.
pub(super) const FILTER_OPTIONS: &str = "rewrite-prefix=PATH, rewrite-host=HOST, set-header=NAME:VALUE, add-header=NAME:VALUE, \
     remove-header=NAME, set-response-header=NAME:VALUE, add-response-header=NAME:VALUE, remove-response-header=NAME, \
     allow=NETWORK[,NETWORK...], deny=NETWORK[,NETWORK...]";

/// Adds an option to `filters`. Returns `false` if it is another option.
pub(super) fn add_option(filters: &mut RouteFilterRule, name: &str, value: &str) -> Result<bool, String> {
    let refused = |why: &dyn std::fmt::Display| format!("{name}: {value:?} {why}");
    match name {
        "rewrite-prefix" => {
            let rewrite = PathRewrite::prefix("/", value).map_err(|why| refused(&why))?;
            filters.request.set_path(rewrite);
        }
        "rewrite-host" => filters.request.set_host(value).map_err(|why| refused(&why))?,
        "set-header" => {
            let (header, text) = header(name, value)?;
            filters.request.set(header, text).map_err(|why| refused(&why))?;
        }
        "add-header" => {
            let (header, text) = header(name, value)?;
            filters.request.add(header, text).map_err(|why| refused(&why))?;
        }
        "remove-header" => filters.request.remove(value).map_err(|why| refused(&why))?,
        "set-response-header" => change(&mut filters.response, name, value, HeaderChanges::set)?,
        "add-response-header" => change(&mut filters.response, name, value, HeaderChanges::add)?,
        "remove-response-header" => filters.response.remove(value).map_err(|why| refused(&why))?,
        "allow" => filters.access.allow.extend(networks(name, value)?),
        "deny" => filters.access.deny.extend(networks(name, value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

type Change = fn(&mut HeaderChanges, &str, &str) -> Result<(), dataplane::table::HeaderEditError>;

fn change(changes: &mut HeaderChanges, name: &str, value: &str, change: Change) -> Result<(), String> {
    let (header, text) = header(name, value)?;
    change(changes, header, text).map_err(|why| format!("{name}: {value:?} {why}"))
}

/// `NAME:VALUE`.
fn header<'a>(name: &str, value: &'a str) -> Result<(&'a str, &'a str), String> {
    let (header, text) = value.split_once(':').ok_or_else(|| format!("{name}: {value:?} is not NAME:VALUE"))?;
    Ok((header, text.trim()))
}

fn networks(name: &str, value: &str) -> Result<Vec<Network>, String> {
    value.split(',').map(|network| network.trim().parse().map_err(|why| format!("{name}: {why}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_filters() {
        let mut filters = RouteFilterRule::default();
        for (name, value) in [
            ("rewrite-prefix", "/v1"),
            ("rewrite-host", "inner.test:8080"),
            ("set-header", "X-A: b:c"),
            ("add-header", "X-B:"),
            ("remove-header", "Cookie"),
            ("set-response-header", "Strict-Transport-Security:max-age=1"),
            ("remove-response-header", "Server"),
            ("allow", "10.0.0.0/8, ::1"),
            ("deny", "10.1.0.0/16"),
        ] {
            assert_eq!(add_option(&mut filters, name, value), Ok(true), "{name}");
        }
        assert_eq!(filters.request.headers().collect::<Vec<_>>(), [("X-A", "b:c"), ("X-B", "")]);
        assert!(filters.request.replaces(b"cookie") && filters.response.drops(b"server"));
        assert_eq!(filters.request.path().unwrap().parts("/x?y").concat(), "/v1/x?y");
        assert_eq!((filters.access.allow.len(), filters.access.deny.len()), (2, 1));
        assert_eq!(add_option(&mut filters, "other", ""), Ok(false));
    }

    #[test]
    fn invalid_option_is_refused_with_its_name() {
        for (name, value) in [
            ("rewrite-prefix", "v1"),
            ("rewrite-host", "a/b"),
            ("set-header", "X-A"),
            ("set-header", "Content-Length: 1"),
            ("add-header", "X A: 1"),
            ("remove-response-header", "Transfer-Encoding"),
            ("add-response-header", "Connection: x"),
            ("allow", ""),
            ("deny", "10.0.0.0/33"),
        ] {
            let why = add_option(&mut RouteFilterRule::default(), name, value).unwrap_err();
            assert!(why.starts_with(name), "{why}");
        }
    }
}
