//! Downloads from the hub into its cache.

mod blobs;
mod http;

use std::io::Read;

use crate::error::printable;
use crate::id::{INDEX, WEIGHTS};
use crate::{HubCache, HubError, HubModel, ModelId, hub_shards};
use blobs::{Remote, Store};
pub(crate) use http::Endpoint;
use http::{Ask, Client, again, read_error, text};
use serde::Deserialize;

/// Listing size of a repository with a hundred thousand files.
const MAX_LISTING: u64 = 16 << 20;
/// The largest tokenizers have about 30 MB; only weights are larger.
const MAX_SMALL: u64 = 256 << 20;
/// Above the largest file that the hub accepts.
const MAX_LARGE: u64 = 1 << 40;

/// Files of a model directory other than the weights.
const SMALL: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.bin",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

/// The required fields of the hub's model description.
#[derive(Deserialize)]
struct Description {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// Downloads the files of a model that Trike needs into the cache. Cached files are not downloaded again.
///
/// The revision becomes visible only after all files are complete. `progress` is called with the bytes done and in total.
pub(crate) fn download(
    id: &ModelId,
    cache: &HubCache,
    endpoint: Endpoint,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), HubError> {
    let client = Client::new(endpoint, format!("{}/{}", id.org(), id.name()), id.revision())?;
    let folder = cache.folder(id);
    let locks = folder.file_name().map(|name| cache.root().join(".locks").join(name));
    let store = Store { locks: locks.unwrap_or_default(), folder };

    let Description { sha: commit, siblings } = again(|| describe(&client))?;
    let files: Vec<String> = siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    let look = |path: &str| again(|| headers(&client, &commit, path));
    let listed = |name: &&str| files.iter().any(|file| file == name);

    let (small, weights): (Vec<Remote>, Vec<String>) = match id.choose(&files)? {
        model @ HubModel::File(_) => (Vec::new(), model.files()),
        HubModel::Directory => {
            let mut small = SMALL
                .iter()
                .filter(|name| listed(name))
                .map(|name| look(name))
                .collect::<Result<Vec<_>, _>>()?;
            if listed(&WEIGHTS) {
                (small, vec![WEIGHTS.to_owned()])
            } else {
                let index = limited(look(INDEX)?, MAX_SMALL)?;
                store.fetch(&client, &index, &mut |_| {})?;
                let shards = hub_shards(&store.blob(&index))?;
                if let Some(missing) = shards.iter().find(|shard| !files.contains(shard)) {
                    let got = format!("no file {}", printable(missing));
                    return Err(HubError::answer(&index.url, "shards listed in the repository", got));
                }
                small.push(index);
                (small, shards)
            }
        }
    };
    let small = small.into_iter().map(|remote| limited(remote, MAX_SMALL));
    let weights = weights.iter().map(|path| limited(look(path)?, MAX_LARGE));
    let wanted = small.chain(weights).collect::<Result<Vec<_>, _>>()?;

    // Cannot overflow: each size is below 2^40, and there are at most a few thousand.
    let total = wanted.iter().map(|remote| remote.size).sum();
    let mut done = 0;
    for remote in &wanted {
        store.fetch(&client, remote, &mut |bytes| progress(done + bytes, total))?;
        done += remote.size;
    }
    for remote in &wanted {
        store.link(remote, &commit)?;
    }
    store.name(id.revision(), &commit)
}

/// The commit of a revision and its files.
fn describe(client: &Client) -> Result<Description, HubError> {
    let revision = client.revision.replace('/', "%2F");
    let url = client.url(&["api/models", &client.repository, "revision"]) + "/" + &revision;
    let answer = client.send(&url, Ask::From(0))?;
    client.check(&url, &answer)?;
    let mut listing = Vec::new();
    let read = client.body(answer).take(MAX_LISTING + 1).read_to_end(&mut listing);
    read.map_err(|error| read_error(&url, client.endpoint.read_timeout, error))?;
    if listing.len() as u64 > MAX_LISTING {
        return Err(HubError::answer(&url, format!("a listing of at most {MAX_LISTING} bytes"), "more"));
    }
    let expected = "a model description with a commit and its files";
    let description: Description = serde_json::from_slice(&listing)
        .map_err(|error| HubError::answer(&url, expected, printable(&error.to_string())))?;
    // The commit becomes a file name in the cache.
    if description.sha.len() != 40 || !description.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
        let got = format!("the commit `{}`", printable(&description.sha));
        return Err(HubError::answer(&url, expected, got));
    }
    Ok(description)
}

/// Requests the ETag and the size of a file.
fn headers(client: &Client, commit: &str, path: &str) -> Result<Remote, HubError> {
    let url = client.url(&[&client.repository, "resolve", commit, path]);
    let answer = client.send(&url, Ask::Head)?;
    client.check(&url, &answer)?;
    let header = |linked: &str, own: &str| {
        text(answer.headers(), linked).or_else(|| text(answer.headers(), own)).map(str::to_owned)
    };
    let etag = header("x-linked-etag", "etag").unwrap_or_default();
    let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
    // The ETag becomes a file name in the cache.
    let plain = etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if !plain || !(1..=128).contains(&etag.len()) || etag.starts_with('.') || etag.ends_with(".incomplete") {
        let got = format!("`{}`", printable(&etag));
        return Err(HubError::answer(&url, "an ETag usable as a file name", got));
    }
    let size = header("x-linked-size", "content-length").unwrap_or_default();
    let bad_size = || {
        let got = format!("`{}`", printable(&size));
        HubError::answer(&url, "the size of the file in bytes", got)
    };
    let size = size.parse().map_err(|_| bad_size())?;
    Ok(Remote { path: path.to_owned(), url, etag, size })
}

fn limited(remote: Remote, most: u64) -> Result<Remote, HubError> {
    if remote.size > most {
        let got = format!("{} bytes", remote.size);
        return Err(HubError::answer(&remote.url, format!("a file of at most {most} bytes"), got));
    }
    Ok(remote)
}
