// Package servicenet is the service network's part in the delivery of reports: the codec between
// package fault and the wire messages, the signed envelopes, the sender's log (Outbox) and the
// receiver's memory of what has come (Inbox). Seed 001 §III-D is what it is for; the two
// acknowledgements and the rails are the project's own.
//
// It is pure: it reads no clock, opens no socket, starts no goroutine and logs nothing. The rails
// are packages of their own below it (direct, gossip); the torus rail belongs to the agent. It
// decides nothing about health, except what missing acknowledgements say about the sender's own
// service network.
package servicenet
