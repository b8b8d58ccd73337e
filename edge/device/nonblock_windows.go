package device

// nonblock has no meaning on Windows, where opening a file never waits for a peer.
const nonblock = 0
