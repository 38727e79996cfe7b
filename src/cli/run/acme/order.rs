//! One order: account, HTTP-01 challenge, key, certificate.

use anyhow::{Context as _, Result, anyhow, bail};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use tokio::time::timeout;

use super::http_client::DirectoryClient;
use super::limits::ORDER_TIMEOUT;
use super::responder::ChallengeResponder;
use super::storage::AcmeStorage;
use crate::config::AcmeConfig;

const ACCOUNT: &str = "account.json";

/// The account's file.
#[derive(serde::Serialize, serde::Deserialize)]
struct StoredAccount {
    /// The address that the directory knows.
    email: String,
    credentials: AccountCredentials,
}

/// The stored account, or a new one. By the e-mail address the operator accepts the authority's terms of service.
pub(super) async fn account(client: &DirectoryClient, storage: &AcmeStorage, config: &AcmeConfig) -> Result<Account> {
    let contact = format!("mailto:{}", config.email);
    if let Some(stored) = storage.read_json::<StoredAccount>(ACCOUNT)? {
        let email = stored.email;
        // The credentials cannot be copied, so the file is read again to keep them.
        let account = Account::builder_with_http(Box::new(client.clone()))
            .from_credentials(stored.credentials)
            .await
            .context("use the account")?;
        if email != config.email {
            account.update_contacts(&[&contact]).await.context("change the account's e-mail address")?;
            let again: StoredAccount = storage.read_json(ACCOUNT)?.context("the account is gone")?;
            storage.write_json(ACCOUNT, &StoredAccount { email: config.email.clone(), ..again })?;
        }
        return Ok(account);
    }
    let new = NewAccount { contact: &[&contact], terms_of_service_agreed: true, only_return_existing: false };
    let (account, credentials) = Account::builder_with_http(Box::new(client.clone()))
        .create(&new, config.directory.clone(), None)
        .await
        .context("create an account")?;
    storage.write_json(ACCOUNT, &StoredAccount { email: config.email.clone(), credentials })?;
    tracing::info!(directory = config.directory, email = config.email, "created an ACME account");
    Ok(account)
}

/// Orders a certificate for `host`. Returns chain and key as PEM.
pub(super) async fn order(account: &Account, responder: &ChallengeResponder, host: &str) -> Result<String> {
    let ordered = timeout(ORDER_TIMEOUT, run(account, responder, host)).await;
    ordered.unwrap_or_else(|_| Err(anyhow!("the order did not end within {ORDER_TIMEOUT:?}")))
}

async fn run(account: &Account, responder: &ChallengeResponder, host: &str) -> Result<String> {
    let identifiers = [Identifier::Dns(host.to_owned())];
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await.context("create the order")?;
    let mut open = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.context("read the authorization")?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue, // of an earlier order
            status => bail!("the authorization is {status:?}"),
        }
        let mut challenge =
            authorization.challenge(ChallengeType::Http01).context("the directory offers no HTTP-01 challenge")?;
        let key_authorization = challenge.key_authorization();
        open.push(responder.open(host, &challenge.token, key_authorization.as_str())?);
        challenge.set_ready().await.context("start the challenge")?;
    }

    // Waits 1 s at first, and up to 20 s; `order` ends it.
    let polling = RetryPolicy::new().initial_delay(std::time::Duration::from_secs(1)).timeout(ORDER_TIMEOUT);
    match order.poll_ready(&polling).await {
        Ok(OrderStatus::Ready) => {}
        Ok(_) => bail!("{}", failed_challenge(&mut order).await),
        Err(why) => return Err(why).context("the HTTP-01 challenge failed, or was not validated in time"),
    }
    drop(open);
    let key = order.finalize().await.context("finalize the order")?;
    let chain = order.poll_certificate(&polling).await.context("download the certificate")?;
    Ok(format!("{}\n{key}", chain.trim_end()))
}

/// What the authority says about a challenge that failed.
async fn failed_challenge(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return format!("the HTTP-01 challenge failed: {problem}");
        }
    }
    "the authority rejected the order, and gives no reason".to_owned()
}
