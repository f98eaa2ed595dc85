package process

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// keep is how long the ledger keeps an ended attempt. No request lasts that long: an attempt's timeout is at most
// maxTimeout, and supervisors ask for outcomes only within 12 hours of an attempt's start.
const keep = 48 * time.Hour

// askedFor is the time that the process must also have run since an attempt's end before the ledger forgets the attempt, because the wall
// clock may jump by days. It exceeds those 12 hours, and is short enough for a process that restarts every night.
const askedFor = 13 * time.Hour

// maxEntries is the capacity of the ledger: usually 300 bytes each, some megabytes on disk, and at most maxLedger/maxEntries bytes. A
// full ledger admits and forbids no further steps.
const maxEntries = 20_000

// ledger records the highest token, and the latest attempt at every step. It is pure; durable.go stores it.
//
//	            admit                  end
//	(nothing) ────────► under way ──────────► ended ──► forgotten, after keep
//	    │                   │ the process ended        ▲
//	    │                   └──────────────────────────┤ NOT KNOWN
//	    └──────── forbidden: it will never be made ────┘ UNCHANGED
type ledger struct {
	cluster string
	token   uint64 // the highest
	entries map[stepKey]entry
	swept   time.Time // time of the last sweep; not stored
	// up returns the time since the process made or read the ledger, by a clock that never jumps. ends holds the end of each attempt by
	// that clock. An attempt without an entry ended before the process began. Neither is stored.
	up   func() time.Duration
	ends map[stepKey]time.Duration
}

// stepKey identifies a step of a response.
type stepKey struct {
	response string
	step     int
}

// entry is the latest attempt at a step.
type entry struct {
	Response string           `json:"response"`
	Step     int              `json:"step"`
	Attempt  int              `json:"attempt"`
	Token    uint64           `json:"token"`
	Kind     response.Kind    `json:"kind,omitempty"` // empty if it was forbidden before it arrived
	Target   string           `json:"target,omitempty"`
	Undo     bool             `json:"undo,omitempty"`
	Began    time.Time        `json:"began"`          // time of admission
	Ended    time.Time        `json:"ended,omitzero"` // zero while in progress
	Outcome  response.Outcome `json:"outcome,omitempty"`
	Detail   string           `json:"detail,omitempty"`
}

func (e entry) key() stepKey { return stepKey{e.Response, e.Step} }

func (e entry) ended() bool { return !e.Ended.IsZero() }

func newLedger(cluster string) *ledger {
	began := time.Now()
	return &ledger{cluster: cluster, entries: map[stepKey]entry{}, ends: map[stepKey]time.Duration{},
		up: func() time.Duration { return time.Since(began) }}
}

// verdict is the decision on a requested attempt.
type verdict uint8

const (
	begin   verdict = iota + 1 // it is new: make it, once the ledger is durable
	same                       // it is already the latest attempt at its step
	stale                      // its token is lower than the highest
	late                       // a later attempt at the step was seen before
	crowded                    // the ledger is full
)

// admit decides on an attempt and records it if it is to begin. For other verdicts it records the token only, unless it
// is lower.
func (l *ledger) admit(now time.Time, e response.Effect) verdict {
	if e.Token < l.token {
		return stale
	}
	l.token = e.Token
	k := stepKey{e.Response, e.Step}
	was, known := l.entries[k]
	switch {
	case known && e.Attempt.Attempt == was.Attempt:
		return same
	case known && e.Attempt.Attempt < was.Attempt:
		return late
	}
	if !l.room(now, k) {
		return crowded
	}
	l.entries[k] = entry{Response: e.Response, Step: e.Step, Attempt: e.Attempt.Attempt, Token: e.Token, Kind: e.Kind,
		Target: e.Target.String(),
		Undo:   e.Undo, Began: now.UTC()}
	return begin
}

// room reports whether the ledger can record an attempt at a step. It forgets old attempts first.
func (l *ledger) room(now time.Time, k stepKey) bool {
	l.forget(now)
	_, known := l.entries[k]
	if !known && len(l.entries) >= maxEntries { // for example in a process that restarts more often than askedFor
		l.drop(now, func(stepKey) bool { return true })
	}
	return known || len(l.entries) < maxEntries
}

// forbid records an attempt that has not arrived as ended, so that admit refuses it if it arrives. It returns false if the ledger is
// full. The caller must ensure that admit would let it begin.
func (l *ledger) forbid(now time.Time, a response.Attempt, token uint64, o response.Outcome, detail string) bool {
	e := entry{Response: a.Response, Step: a.Step, Attempt: a.Attempt, Token: token, Began: now.UTC(), Ended: now.UTC(), Outcome: o,
		Detail: detail}
	if !l.room(now, e.key()) {
		return false
	}
	l.entries[e.key()], l.ends[e.key()] = e, l.up()
	return true
}

// end records the outcome of an attempt if it is still the latest at its step.
func (l *ledger) end(now time.Time, a response.Attempt, o response.Outcome, detail string) bool {
	k := stepKey{a.Response, a.Step}
	e, ok := l.entries[k]
	if !ok || e.Attempt != a.Attempt || e.ended() {
		return false
	}
	e.Ended, e.Outcome, e.Detail = now.UTC(), o, detail
	l.entries[k], l.ends[k] = e, l.up()
	return true
}

// interrupt gives attempts in progress at the end of the process the outcome NotKnown, and returns their number.
func (l *ledger) interrupt(now time.Time) int {
	n := 0
	for _, e := range l.entries {
		if l.end(now, response.Attempt{Response: e.Response, Step: e.Step, Attempt: e.Attempt}, response.NotKnown,
			"the executor process ended while it was under way") {
			n++
		}
	}
	return n
}

// sweep is the interval between removals of old entries, each of which reads all entries.
const sweep = 10 * time.Minute

// forget removes entries that ended long ago.
func (l *ledger) forget(now time.Time) {
	if d := now.Sub(l.swept); d >= 0 && d < sweep {
		return
	}
	l.swept = now
	up := l.up()
	l.drop(now, func(k stepKey) bool { return up-l.ends[k] > askedFor })
}

// drop removes the entries that ended more than keep ago, and that may be forgotten.
func (l *ledger) drop(now time.Time, may func(stepKey) bool) {
	for k, e := range l.entries {
		if e.ended() && now.Sub(e.Ended) > keep && may(k) {
			delete(l.entries, k)
			delete(l.ends, k)
		}
	}
}

// magic is the beginning of the file; the number is the format's version.
const magic = "lofamo-executor-ledger 1 sha256:"

// maxLedger is the maximum size of the file, in bytes.
const maxLedger = 64 << 20

// document is the stored form of the ledger.
type document struct {
	Cluster  string  `json:"cluster"`
	Token    uint64  `json:"token"`
	Attempts []entry `json:"attempts"` // sorted by response and step
}

// encode returns the file: a line with the checksum of the rest, then JSON.
func (l *ledger) encode() ([]byte, error) {
	d := document{Cluster: l.cluster, Token: l.token, Attempts: slices.SortedFunc(maps.Values(l.entries), func(a, b entry) int {
		if c := strings.Compare(a.Response, b.Response); c != 0 {
			return c
		}
		return a.Step - b.Step
	})}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // would make a '<' six times as long
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	sum := sha256.Sum256(body.Bytes())
	return append([]byte(magic+hex.EncodeToString(sum[:])+"\n"), body.Bytes()...), nil
}

// decodeLedger decodes the output of encode and rejects everything else.
func decodeLedger(b []byte) (*ledger, error) {
	head, body, ok := bytes.Cut(b, []byte("\n"))
	given, named := bytes.CutPrefix(head, []byte(magic))
	if !ok || !named {
		return nil, fmt.Errorf("its first line is not %q and a checksum", magic)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != string(given) {
		return nil, errors.New("the checksum is wrong: it is damaged, or somebody has edited it")
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows its end")
	}
	l := newLedger(d.Cluster)
	l.token = d.Token
	for i, e := range d.Attempts {
		if err := e.check(d.Token); err != nil {
			return nil, fmt.Errorf("attempts[%d]: %w", i, err)
		}
		if _, twice := l.entries[e.key()]; twice {
			return nil, fmt.Errorf("attempts[%d]: step %d of %s stands there twice", i, e.Step, e.Response)
		}
		l.entries[e.key()] = e
	}
	return l, nil
}

// check rejects an invalid entry.
func (e entry) check(highest uint64) error {
	switch {
	case e.Response == "" || e.Step < 0 || e.Attempt < 1:
		return fmt.Errorf("given attempt %d at step %d of %q: want an attempt from 1, a step from 0 and a response", e.Attempt, e.Step,
			e.Response)
	case e.Token > highest:
		return fmt.Errorf("token: given %d: want at most the highest, %d", e.Token, highest)
	case e.Began.IsZero():
		return errors.New("began: given nothing: want a time")
	case e.ended() != (e.Outcome != 0) || e.Outcome > response.StaleToken:
		return fmt.Errorf("outcome: given %d, ended %s: want both or none, an outcome of 1 to %d", e.Outcome, e.Ended, response.StaleToken)
	}
	return nil
}
