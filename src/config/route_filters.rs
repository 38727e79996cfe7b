//! The options of `--route` that change requests and responses, or refuse clients.

use std::sync::Arc;

use control::publish::RouteFilterRule;
use dataplane::table::{
    CompressionPolicy, CorsPolicy, CorsPolicyError, HeaderChanges, PathRewrite, RATE_PERIOD_MAX, RATE_REQUESTS_MAX,
    RateLimit, RateLimitKey, RateLimiter,
};
use dataplane::trusted_proxies::Network;

use super::value::Wait;

/// These options, for messages.
pub(super) const FILTER_OPTIONS: &str = "rewrite-prefix=PATH, rewrite-host=HOST, set-header=NAME:VALUE, add-header=NAME:VALUE, \
     remove-header=NAME, set-response-header=NAME:VALUE, add-response-header=NAME:VALUE, remove-response-header=NAME, \
     allow=NETWORK[,NETWORK...], deny=NETWORK[,NETWORK...], rate-limit=COUNT/TIME[,burst=COUNT][,by=client|header:NAME], \
     max-body=BYTES, compress=CODING[,CODING...], cors-origin=ORIGIN[,ORIGIN...], cors-methods=METHOD[,METHOD...], \
     cors-headers=NAME[,NAME...], cors-expose-headers=NAME[,NAME...], cors-credentials=true, cors-max-age=SECONDS";

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
        "rate-limit" => {
            let limit = rate_limit(value).map_err(|why| format!("{name}: {value:?} {why}"))?;
            filters.rate_limits.push(Arc::new(RateLimiter::new(limit)));
        }
        "max-body" => {
            let bytes = value.parse().map_err(|_| format!("{name}: {value:?} is not a number of bytes"))?;
            filters.body_bytes_max = Some(bytes);
        }
        "compress" => {
            filters.compression = Some(CompressionPolicy::parse(value).map_err(|why| format!("{name}: {why}"))?);
        }
        name => return cors_option(filters, name, value),
    }
    Ok(true)
}

/// The options of CORS.
fn cors_option(filters: &mut RouteFilterRule, name: &str, value: &str) -> Result<bool, String> {
    type Add = fn(&mut CorsPolicy, &str) -> Result<(), CorsPolicyError>;
    let add: Add = match name {
        "cors-origin" => CorsPolicy::allow_origin,
        "cors-methods" => CorsPolicy::allow_method,
        "cors-headers" => CorsPolicy::allow_header,
        "cors-expose-headers" => CorsPolicy::expose_header,
        "cors-credentials" if value == "true" => {
            filters.cors.get_or_insert_default().allow_credentials = true;
            return Ok(true);
        }
        "cors-max-age" => {
            let seconds = value.parse().map_err(|_| format!("{name}: {value:?} is not a number of seconds"))?;
            filters.cors.get_or_insert_default().max_age = Some(seconds);
            return Ok(true);
        }
        _ => return Ok(false),
    };
    let policy = filters.cors.get_or_insert_default();
    for item in value.split(',').map(str::trim) {
        add(policy, item).map_err(|why| format!("{name}: {item:?} {why}"))?;
    }
    Ok(true)
}

/// `100/s`, `10/5m,burst=20,by=client`. Without `burst` so many may come at once as in the time.
fn rate_limit(text: &str) -> Result<RateLimit, String> {
    let mut parts = text.split(',').map(str::trim);
    let rate = parts.next().unwrap_or_default();
    let (requests, period) = rate.split_once('/').ok_or("is not COUNT/TIME, like 100/s or 10/5m")?;
    let count = |text: &str| {
        let count = text.parse().ok().filter(|count| (1..=RATE_REQUESTS_MAX).contains(count));
        count.ok_or_else(|| format!("has a count that is not between 1 and {RATE_REQUESTS_MAX}"))
    };
    // `s` is one second.
    let period =
        if period.starts_with(|c: char| c.is_ascii_digit()) { period.to_owned() } else { format!("1{period}") };
    let Wait(period) = period.parse().map_err(|why| format!("has an invalid time: {why}"))?;
    if period.is_zero() || period > RATE_PERIOD_MAX {
        return Err(format!("has a time that is not between 1ms and {}s", RATE_PERIOD_MAX.as_secs()));
    }
    let requests = count(requests)?;
    let mut limit = RateLimit { requests, period, burst: requests, key: RateLimitKey::Rule };
    for part in parts {
        match part.split_once('=') {
            Some(("burst", text)) => limit.burst = count(text)?,
            Some(("by", "client")) => limit.key = RateLimitKey::Client,
            Some(("by", key)) if key.starts_with("header:") && is_header_name(&key["header:".len()..]) => {
                limit.key = RateLimitKey::Header(key["header:".len()..].into());
            }
            _ => return Err(format!("has {part:?}, which is neither burst=COUNT nor by=client or by=header:NAME")),
        }
    }
    Ok(limit)
}

fn is_header_name(name: &str) -> bool {
    HeaderChanges::default().remove(name).is_ok()
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
    use std::time::Duration;

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
            ("rate-limit", "100/s"),
            ("rate-limit", "10/5m, burst=20, by=header:X-Api-Key"),
            ("max-body", "1048576"),
            ("compress", "zstd,gzip"),
            ("cors-origin", "https://a.test,https://*.b.test"),
            ("cors-methods", "GET, POST"),
            ("cors-headers", "*"),
            ("cors-credentials", "true"),
            ("cors-max-age", "60"),
        ] {
            assert_eq!(add_option(&mut filters, name, value), Ok(true), "{name}");
        }
        assert_eq!(filters.request.headers().collect::<Vec<_>>(), [("X-A", "b:c"), ("X-B", "")]);
        assert!(filters.request.replaces(b"cookie") && filters.response.drops(b"server"));
        assert_eq!(filters.request.path().unwrap().parts("/x?y").concat(), "/v1/x?y");
        assert_eq!((filters.access.allow.len(), filters.access.deny.len()), (2, 1));
        let limits: Vec<_> = filters.rate_limits.iter().map(|limiter| limiter.limit().clone()).collect();
        let second = RateLimit { requests: 100, period: Duration::from_secs(1), burst: 100, key: RateLimitKey::Rule };
        assert_eq!(limits[0], second);
        let key = RateLimitKey::Header("X-Api-Key".into());
        assert_eq!(limits[1], RateLimit { requests: 10, period: Duration::from_secs(300), burst: 20, key });
        assert_eq!((filters.body_bytes_max, filters.compression.is_some()), (Some(1 << 20), true));
        let cors = filters.cors.clone().unwrap();
        assert_eq!((cors.allow_credentials, cors.max_age), (true, Some(60)));
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
            ("rate-limit", "100"),
            ("rate-limit", "0/s"),
            ("rate-limit", "1/2h"),
            ("rate-limit", "1/s,by=cookie"),
            ("rate-limit", "1/s,by=header:a b"),
            ("max-body", "1k"),
            ("compress", "deflate"),
            ("cors-origin", "a.test"),
            ("cors-methods", "A B"),
            ("cors-max-age", "x"),
        ] {
            let why = add_option(&mut RouteFilterRule::default(), name, value).unwrap_err();
            assert!(why.starts_with(name), "{why}");
        }
    }
}
