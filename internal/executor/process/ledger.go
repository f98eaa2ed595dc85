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

// keep is for how long an attempt that has ended is remembered. No request lives as long: an attempt's time is at most maxTimeout,
// and whoever asks after it does so soon after.
const keep = 48 * time.Hour

// maxEntries bounds the ledger: 300 bytes each, some megabytes on the disk. When it is full nothing more is done.
const maxEntries = 20_000

// ledger is what a process remembers of what it was asked: the highest token, and of every step its newest attempt. It is a
// function of what it is told; durable.go keeps it.
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
	swept   time.Time // when it last was looked for what is to be forgotten; not written
}

// stepKey names a step of a response.
type stepKey struct {
	response string
	step     int
}

// entry is the newest attempt at a step.
type entry struct {
	Response string           `json:"response"`
	Step     int              `json:"step"`
	Attempt  int              `json:"attempt"`
	Token    uint64           `json:"token"`
	Kind     response.Kind    `json:"kind,omitempty"` // empty: it was forbidden before it came
	Target   string           `json:"target,omitempty"`
	Undo     bool             `json:"undo,omitempty"`
	Began    time.Time        `json:"began"`          // when it was admitted
	Ended    time.Time        `json:"ended,omitzero"` // zero: it is under way
	Outcome  response.Outcome `json:"outcome,omitempty"`
	Detail   string           `json:"detail,omitempty"`
}

func (e entry) key() stepKey { return stepKey{e.Response, e.Step} }

func (e entry) ended() bool { return !e.Ended.IsZero() }

func newLedger(cluster string) *ledger {
	return &ledger{cluster: cluster, entries: map[stepKey]entry{}}
}

// verdict is what becomes of an attempt that is asked for.
type verdict uint8

const (
	begin   verdict = iota + 1 // it is new: make it, once the ledger is durable
	same                       // it was given before, and is the newest of its step
	stale                      // its token is lower than the highest
	late                       // a higher attempt at the step was given before
	crowded                    // there is no room
)

// admit says what becomes of an attempt, and enters it if it is to begin. Of all others the token alone is noted.
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
	l.forget(now)
	if !known && len(l.entries) >= maxEntries {
		return crowded
	}
	l.entries[k] = entry{Response: e.Response, Step: e.Step, Attempt: e.Attempt.Attempt, Token: e.Token, Kind: e.Kind,
		Target: e.Target.String(),
		Undo:   e.Undo, Began: now.UTC()}
	return begin
}

// forbid enters an attempt that has not come as one that failed and changed nothing, so that it is refused when it comes. It is
// for attempts that admit would let begin.
func (l *ledger) forbid(now time.Time, a response.Attempt, token uint64) entry {
	e := entry{Response: a.Response, Step: a.Step, Attempt: a.Attempt, Token: token, Began: now.UTC(), Ended: now.UTC(),
		Outcome: response.Unchanged, Detail: "it never came, and is refused from now on"}
	l.entries[e.key()] = e
	return e
}

// end notes how an attempt ended, if it still is the newest of its step.
func (l *ledger) end(now time.Time, a response.Attempt, o response.Outcome, detail string) bool {
	k := stepKey{a.Response, a.Step}
	e, ok := l.entries[k]
	if !ok || e.Attempt != a.Attempt || e.ended() {
		return false
	}
	e.Ended, e.Outcome, e.Detail = now.UTC(), o, detail
	l.entries[k] = e
	return true
}

// interrupt ends what was under way when the process ended: nobody can say what became of it. It returns how many there were.
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

// sweep is how often it is looked for what is to be forgotten: each entry is looked at then.
const sweep = 10 * time.Minute

// forget drops what ended long ago.
func (l *ledger) forget(now time.Time) {
	if d := now.Sub(l.swept); d >= 0 && d < sweep {
		return
	}
	l.swept = now
	maps.DeleteFunc(l.entries, func(_ stepKey, e entry) bool { return e.ended() && now.Sub(e.Ended) > keep })
}

// magic begins the file; the number is that of its format.
const magic = "lofamo-executor-ledger 1 sha256:"

// maxLedger bounds the file, in bytes.
const maxLedger = 64 << 20

// document is the ledger as it is written.
type document struct {
	Cluster  string  `json:"cluster"`
	Token    uint64  `json:"token"`
	Attempts []entry `json:"attempts"` // by response and step
}

// encode writes the ledger: a line with the checksum of all that follows, then JSON.
func (l *ledger) encode() ([]byte, error) {
	d := document{Cluster: l.cluster, Token: l.token, Attempts: slices.SortedFunc(maps.Values(l.entries), func(a, b entry) int {
		if c := strings.Compare(a.Response, b.Response); c != 0 {
			return c
		}
		return a.Step - b.Step
	})}
	body, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode the ledger: %w", err)
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	return append([]byte(magic+hex.EncodeToString(sum[:])+"\n"), body...), nil
}

// decodeLedger reads what encode wrote, and refuses everything else.
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

// check refuses an entry that no ledger has.
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
