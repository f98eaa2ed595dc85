package servicenet

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// OutboxConfig sets an outbox. All times are on the sender's own clock.
type OutboxConfig struct {
	AckTimeout       time.Duration // first and least wait for RECEIVED: three slices of 10 ms
	MaxAckTimeout    time.Duration // most that the estimator makes of it
	CommitTimeout    time.Duration // first wait for COMMITTED after RECEIVED; doubles to MaxBackoff
	MaxBackoff       time.Duration // longest wait between two attempts
	SilentBackoff    time.Duration // first wait between two rounds of a silence; at least MaxBackoff
	NetworkDeadAfter time.Duration // without RECEIVED on the direct rail for so long: FAILED
	MaxReports       int           // in the log, digests apart; at least 1
	Rails            []fault.Path  // that this half has; a DNP half has only PathTorus
	// Interfaces names the service interfaces, each a direct rail of its own; 1 to 8 with PathDirect,
	// none without.
	Interfaces []string
	// AggregateDelay is how long a report may wait for others to share its datagram while four are
	// unanswered.
	AggregateDelay time.Duration
	Checksums      []lofamov1.Checksum // offered to supervisors, the preferred first
	// Certificate is the size of the half's certificate in bytes; 0: a usual one. The reports of a half with a large one
	// are shorter, so that they fit a datagram beside it.
	Certificate int
}

// MaxInterfaces bounds OutboxConfig.Interfaces.
const MaxInterfaces = 8

// DefaultOutboxConfig returns the values of the default preset for a half with the given rails.
func DefaultOutboxConfig(rails ...fault.Path) OutboxConfig {
	var interfaces []string
	if slices.Contains(rails, fault.PathDirect) {
		interfaces = []string{"service"}
	}
	return OutboxConfig{
		Interfaces:       interfaces,
		AggregateDelay:   2 * time.Millisecond,
		Checksums:        []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_CRC32C},
		AckTimeout:       30 * time.Millisecond,
		MaxAckTimeout:    500 * time.Millisecond,
		CommitTimeout:    500 * time.Millisecond,
		MaxBackoff:       time.Second,
		SilentBackoff:    time.Second,
		NetworkDeadAfter: 1200 * time.Millisecond,
		MaxReports:       1024,
		Rails:            rails,
	}
}

// Validate names every bad field at once.
func (c OutboxConfig) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"AckTimeout", c.AckTimeout}, {"CommitTimeout", c.CommitTimeout}, {"NetworkDeadAfter", c.NetworkDeadAfter}} {
		if f.d <= 0 {
			bad(f.name, f.d, "more than 0")
		}
	}
	if c.MaxAckTimeout < c.AckTimeout {
		bad("MaxAckTimeout", c.MaxAckTimeout, fmt.Sprintf("at least AckTimeout (%v)", c.AckTimeout))
	}
	if c.MaxBackoff < c.MaxAckTimeout {
		bad("MaxBackoff", c.MaxBackoff, fmt.Sprintf("at least MaxAckTimeout (%v)", c.MaxAckTimeout))
	}
	if c.SilentBackoff < c.MaxBackoff {
		bad("SilentBackoff", c.SilentBackoff, fmt.Sprintf("at least MaxBackoff (%v)", c.MaxBackoff))
	}
	if c.MaxReports < 1 || c.MaxReports > 1<<16 {
		bad("MaxReports", c.MaxReports, "1 to 65536")
	}
	if len(c.Rails) == 0 {
		bad("Rails", "none", "at least one of DIRECT, GOSSIP, TORUS")
	}
	for i, p := range c.Rails {
		if !p.Valid() || slices.Contains(c.Rails[:i], p) {
			bad("Rails", p, "each of DIRECT, GOSSIP, TORUS at most once")
		}
	}
	c.validateInterfaces(bad)
	return errors.Join(errs...)
}

func (c OutboxConfig) validateInterfaces(bad func(field string, given any, want string)) {
	n := len(c.Interfaces)
	switch direct := slices.Contains(c.Rails, fault.PathDirect); {
	case direct && (n < 1 || n > MaxInterfaces):
		bad("Interfaces", n, fmt.Sprintf("1 to %d with the rail DIRECT", MaxInterfaces))
	case !direct && n > 0:
		bad("Interfaces", n, "none without the rail DIRECT")
	}
	for i, name := range c.Interfaces {
		if name == "" || len(name) > 40 || slices.Contains(c.Interfaces[:i], name) {
			bad("Interfaces", strconv.Quote(name), "different names of 1 to 40 bytes")
		}
	}
	if c.AggregateDelay < 0 || c.AggregateDelay > c.AckTimeout {
		bad("AggregateDelay", c.AggregateDelay, fmt.Sprintf("0 to AckTimeout (%v)", c.AckTimeout))
	}
	for i, sum := range c.Checksums {
		if _, known := lofamov1.Checksum_name[int32(sum)]; !known || slices.Contains(c.Checksums[:i], sum) {
			bad("Checksums", sum, "each known algorithm at most once")
		}
	}
}
