package direct

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// QuoteSize is the number of bytes of a refused datagram that OnRefused gets at most. IPv4 kernels quote 520 or more.
const QuoteSize = 128

const (
	// strangeRate and strangeBurst bound the ICMP errors per second that quote no datagram known to the owner: forged
	// errors, and errors for all other datagrams to dead nodes.
	strangeRate, strangeBurst = 500, 500
	// For a udpguard.Rest after that the kernel collects no errors.
	strangeRest, strangeRestMost = time.Second, 64 * time.Second
)

// strangeErrors bounds the errors that the owner of OnRefused does not know. They lie in the buffer of the received
// datagrams, so a flood of them would cost known sources their room. Without errors the owner learns of no refusal.
type strangeErrors struct {
	limiter *rate.Limiter
	rest    udpguard.Rest
	until   time.Time // errors are not collected before; zero: they are collected
}

// refused passes on an error, and ends the collection of errors when too many are strange.
func (r *reader) refused(now time.Time, e *pathError) {
	if e.quote != nil && r.s.opts.OnRefused(e.to, e.quote) {
		return
	}
	g := &r.strange
	if g.limiter.AllowN(now, 1) || !g.until.IsZero() {
		return
	}
	g.until = now.Add(g.rest.Next(now))
	_ = r.ep.collectErrors(false) // fails only at a closed socket
}

// collectAgain collects errors again after the rest.
func (r *reader) collectAgain() {
	g := &r.strange
	if g.until.IsZero() {
		return
	}
	if now := time.Now(); !now.Before(g.until) {
		g.until = time.Time{}
		_ = r.ep.collectErrors(true) // fails only at a closed socket
	}
}
