// Package servicenet is the service network's part in the delivery of reports: the codec between
// package fault and the wire messages, the signed envelopes, the sender's log (Outbox) and the
// receiver's memory of what has come (Inbox). Seed 001 §III-D is what it is for; the two
// acknowledgements and the rails are the project's own.
//
// It is pure: it reads no clock, opens no socket, starts no goroutine and logs nothing. The rails
// are packages of their own below it (direct, gossip); the torus rail belongs to the agent. It
// decides nothing about health, except what missing acknowledgements say about the sender's own
// service network.
//
// # On the wire
//
// Everything is an Envelope of at most MaxDatagram bytes (api/lofamo/v1/wire.proto):
//
//	Envelope { payload = Message, certificate + signature | session + mac, checksum }
//	Message  { one of Report, Ack, Challenge, Answer, Relayed, Downcall }
//
//	Report, Answer             signed by the half that speaks
//	Relayed { inner, hops }    around either, signed by the host half that is the last hop
//	Ack, Challenge             signed by a supervisor
//	Downcall { node, inner }   around either, signed by a supervisor
//
// Nothing is parsed before its signature is good. Unknown fields are kept and ignored, an unknown
// body is ErrUnknownMessage, anything outside its range is refused with a Refusal to count.
//
// # Delivery
//
// An Outbox sends a report on one rail, and on more of them for as long as no RECEIVED comes; it
// keeps the report until COMMITTED. Receivers drop duplicates by (origin, epoch, sequence number)
// in an Inbox whose positions are stored with the commit. Both sides hold the same bound: no
// report is sent WindowBits or more ahead of an older one in the log, so the window never closes
// over a report that is still wanted.
//
// What is to come has its place: a spool on disk stands behind Outbox.Add and the COMMITTED case of
// Step; further rails are values of fault.Path that railsFor orders; path migration replaces
// usable and pickTarget.
package servicenet
