package pki

import "time"

// RenewalAction is the next step of a half towards a new certificate. RenewalAsker decides when a half asks, and
// RenewalDesk how a supervisor answers. They read no clock and send nothing: the shells in internal/agent and
// internal/supervisor do.
type RenewalAction int

// The actions.
const (
	RenewalWait    RenewalAction = iota + 1 // nothing
	RenewalAsk                              // send a request
	RenewalExpired                          // only new files help: verifiers reject the certificate's signatures
)

// Pauses between requests, as parts of the certificate's lifetime, within bounds. The first pause doubles up to the
// longest.
const (
	firstPart, firstMost     = 1000, time.Minute
	longestPart, longestMost = 40, time.Hour
	shortestPause            = time.Second
	spreadPart               = 16 // of the lifetime: the window, after half-time, over which requests are spread
	startSpread              = time.Minute
)

// RenewalAsker decides when a half asks: when half of its certificate's lifetime is left, or within a minute if an earlier
// issuer signed it, and then with growing pauses until it uses another certificate. All times are randomised, so that
// certificates made together are not renewed together.
// One goroutine may use it.
type RenewalAsker struct {
	random       func() float64 // in [0, 1)
	begins, ends time.Time      // of the certificate
	next         time.Time
	pause        time.Duration
}

// NewRenewalAsker returns an asker with a source of random numbers in [0, 1).
func NewRenewalAsker(random func() float64) *RenewalAsker { return &RenewalAsker{random: random} }

// Step returns the action for the certificate that the half uses now. outdated: an earlier issuer signed it.
func (a *RenewalAsker) Step(now, begins, ends time.Time, outdated bool) RenewalAction {
	life := ends.Sub(begins)
	if !begins.Equal(a.begins) || !ends.Equal(a.ends) {
		a.begins, a.ends = begins, ends
		a.next = begins.Add(life/2 + a.part(life/spreadPart))
		if late := now.Add(a.part(min(life/spreadPart, startSpread))); outdated || a.next.Before(now) {
			a.next = late // many halves may have started at once
		}
		a.pause = within(life/firstPart, firstMost)
	}
	switch {
	case !now.Before(ends):
		return RenewalExpired
	case now.Before(a.next):
		return RenewalWait
	}
	a.next = now.Add(a.pause*3/4 + a.part(a.pause/2))
	a.pause = min(2*a.pause, within(life/longestPart, longestMost))
	return RenewalAsk
}

func (a *RenewalAsker) part(d time.Duration) time.Duration {
	return time.Duration(a.random() * float64(d))
}

func within(d, most time.Duration) time.Duration { return max(shortestPause, min(d, most)) }
