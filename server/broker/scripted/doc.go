// Package scripted is a model provider that answers from a script: a real HTTP
// server that speaks OpenAI Chat Completions, OpenAI Responses and Anthropic
// Messages, streaming and not, for demos, tests and agents under development. It
// is no mock: whoever calls it goes through TLS, keys, prices and streams as with
// any provider.
//
// A script is HCL: rules, of which the first that matches the conversation
// answers. Matching looks only at what was sent, so a restarted turn gets the
// same answers. See testdata/example.hcl for a whole one.
//
//	rule "list the notes" {
//	  when {
//	    user_matches = "(?i)list (?P<folder>\\S+)"   # last user message
//	    results      = 0                             # tool results since it
//	  }
//	  text = "I will look."
//	  call "files_list" {
//	    arguments = { path = user.folder }
//	  }
//	}
//
// Conditions of `when` (all that are given must hold; without any the rule
// always matches):
//
//	user_contains, user_matches        last user message
//	system_contains                    system message
//	results                            number of tool results since the last user message
//	result_of                          alias of the tool that gave the newest result
//	result_contains, result_matches    newest tool result
//	any_result_matches                 newest tool result since the last user message that matches
//	offers                             list of tool aliases that the request must offer
//	choice                             "<alias>.<argument>": the offered tool's argument is one of several
//	                                   texts; a group of user_matches with its name must be one of them
//	model                              model name of the request
//
// Answers: `text`, any number of `call "<alias>" { arguments = {…} }` (or
// raw_arguments = "…", sent as it stands), `length = true` for an answer cut by
// its limit. Every value is an HCL expression; it sees
//
//	user.<name>, result.<name>, any.<name>   named groups of the regular expressions
//	last_user, last_result                   whole texts
//	choices                                  list of what the argument of choice may be
//
// and the functions upper, lower, trimspace, replace, split, join, jsonencode,
// jsondecode. Manner: `delay` before the first byte, `chunk_delay` between
// pieces, `chunk_runes` per piece (default 12), `usage { input = 10, output = 5 }`
// (cache_read and cache_write are parts of input).
//
// Failures: `error { status = 429, retry_after = "2s", message = "…" }`,
// `garbage = true` (no JSON), and after so many pieces `cut_after = 2` (the
// connection breaks), `end_after = 2` (the stream ends without its end marker),
// `stall_after = 2` (nothing comes any more).
//
// What no rule matches is answered with status 422 and a text that says what was
// looked for. With a key the server demands `Authorization: Bearer <key>` or
// `x-api-key: <key>`.
package scripted
