package bulk

import (
	"crypto/ecdh"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// ReceiverConfig sets a receiver. Windows and Buffer are in chunks.
type ReceiverConfig struct {
	RequestTimeout time.Duration // wait for the first announcement before the next way is tried
	MinTimeout     time.Duration // least and
	MaxTimeout     time.Duration // most that the round trips make of the wait for a chunk
	GatherPoll     time.Duration // how often to ask while the object is gathered or summed
	KeepAlive      time.Duration // how often to say that it is still wanted, while the consumer is slow
	GiveUp         time.Duration // nothing on any way for so long: TIMEOUT
	Silences       int           // waits in a row without a word before the way is changed
	ReturnAfter    time.Duration // before a better way is tried again; doubles to MaxReturn
	MaxReturn      time.Duration
	MinWindow      int // chunks under way
	MaxDirect      int
	MaxTorus       int
	Buffer         int // between the consumer's position and the newest chunk
}

// DefaultReceiverConfig returns the values of the default preset.
func DefaultReceiverConfig() ReceiverConfig {
	return ReceiverConfig{
		RequestTimeout: 500 * time.Millisecond,
		MinTimeout:     50 * time.Millisecond,
		MaxTimeout:     2 * time.Second,
		GatherPoll:     time.Second,
		KeepAlive:      10 * time.Second,
		GiveUp:         30 * time.Second,
		Silences:       4,
		ReturnAfter:    5 * time.Second,
		MaxReturn:      time.Minute,
		MinWindow:      8,
		MaxDirect:      256,
		MaxTorus:       64,
		Buffer:         256,
	}
}

// Validate names every bad field at once.
func (c ReceiverConfig) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	for _, f := range []struct {
		name     string
		d, least time.Duration
		what     string
	}{
		{"RequestTimeout", c.RequestTimeout, time.Millisecond, ""},
		{"MinTimeout", c.MinTimeout, time.Millisecond, ""},
		{"MaxTimeout", c.MaxTimeout, c.MinTimeout, " (MinTimeout)"},
		{"GatherPoll", c.GatherPoll, time.Millisecond, ""},
		{"KeepAlive", c.KeepAlive, c.GatherPoll, " (GatherPoll)"},
		{"GiveUp", c.GiveUp, max(c.MaxTimeout, 2*c.KeepAlive), " (MaxTimeout, twice KeepAlive)"},
		{"ReturnAfter", c.ReturnAfter, time.Millisecond, ""},
		{"MaxReturn", c.MaxReturn, c.ReturnAfter, " (ReturnAfter)"},
	} {
		if f.d < f.least {
			bad(f.name, f.d, fmt.Sprintf("at least %v%s", f.least, f.what))
		}
	}
	for _, f := range []struct {
		name           string
		n, least, most int
	}{
		{"Silences", c.Silences, 1, 100},
		{"MinWindow", c.MinWindow, 1, 256},
		{"MaxDirect", c.MaxDirect, c.MinWindow, 256},
		{"MaxTorus", c.MaxTorus, c.MinWindow, 256},
		{"Buffer", c.Buffer, max(1, c.MaxDirect, c.MaxTorus), 4096},
	} {
		if f.n < f.least || f.n > f.most {
			bad(f.name, f.n, fmt.Sprintf("%d to %d", f.least, f.most))
		}
	}
	return errors.Join(errs...)
}

// Way is one way to the half.
type Way struct {
	Via string // node that passes on through the torus; empty: directly
}

func (w Way) String() string {
	if w.Via == "" {
		return "direct"
	}
	return "via " + w.Via
}

// Exchange holds the values that belong to one attempt only: random, made by the shell.
type Exchange struct {
	Transfer Transfer
	Private  *ecdh.PrivateKey
}

// Job describes the object to fetch.
type Job struct {
	Origin     fault.Origin // whose object
	Object     string
	MaxSize    uint64 // bytes
	Supervisor string // that fetches the object
	ReplyTo    string // its address
	Ways       []Way  // the best first; at least one, none twice
	// Exchanges serve the first attempt and the second, which follows once when the half was
	// restarted or the checksum is wrong.
	Exchanges [2]Exchange
}

// Validate names every bad field at once.
func (j Job) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	if j.Origin.Node == "" || !j.Origin.Half.Valid() {
		bad("Origin", j.Origin, "a node and a half")
	}
	if j.Object == "" {
		bad("Object", "nothing", "a name")
	}
	if j.MaxSize < 1 || j.MaxSize > MaxSize {
		bad("MaxSize", j.MaxSize, fmt.Sprintf("1 to %d", MaxSize))
	}
	if n := len(j.Supervisor); n < 1 || n > MaxTarget {
		bad("Supervisor", fmt.Sprintf("%d bytes", n), fmt.Sprintf("1 to %d", MaxTarget))
	}
	if j.ReplyTo == "" {
		bad("ReplyTo", "nothing", "an address")
	}
	if len(j.Ways) == 0 {
		bad("Ways", "none", "at least one")
	}
	for i, w := range j.Ways {
		if slices.Contains(j.Ways[:i], w) {
			bad("Ways", w, "none twice")
		}
	}
	for i, e := range j.Exchanges {
		if e.Private == nil || e.Transfer == (Transfer{}) {
			bad(fmt.Sprintf("Exchanges[%d]", i), "nothing", "a random name and a private key")
		}
	}
	if j.Exchanges[0].Transfer == j.Exchanges[1].Transfer {
		bad("Exchanges", "one name twice", "two")
	}
	return errors.Join(errs...)
}
