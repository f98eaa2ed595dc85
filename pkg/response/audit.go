package response

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// The audit of responses is the chain of all decisions. The chain proves to any reader of the lines that none was changed,
// omitted or inserted.
//
// A line is JSON in one form only, its keys in the order of the struct below, without empty ones:
//
//	{"seq":2,"prev":"9f…","at":"2027-01-15T08:00:00.5Z","act":"started","response":"r7-1","policy":"drain",
//	"node":"n1-0-1","component":"memory","step":"cordon","kind":"kubernetes.cordon","attempt":1}
//
// Its hash is the SHA-256 of these bytes. The next line has it as prev; the first has 64 zeros. An exported line is the
// same with "hash" as its last key. The chain reveals every change, unless its author also rewrote all
// later lines. A hash kept elsewhere reveals that as well; this is the purpose of an export.

// AuditLine is one decision as it was committed, chained to the line before it.
type AuditLine struct {
	Seq      uint64 // from 1, without gaps
	Decision Decision
	Prev     [sha256.Size]byte // hash of the line before it; zeros for the first
	Hash     [sha256.Size]byte // of this line, Prev included
}

// MaxAuditLine bounds a line, in bytes.
const MaxAuditLine = 64 << 10

// writtenAudit is the JSON form of a line; the hash does not cover Hash.
type writtenAudit struct {
	Seq       uint64 `json:"seq"`
	Prev      string `json:"prev"`
	At        string `json:"at"`
	Act       string `json:"act"`
	Response  string `json:"response,omitempty"`
	Policy    string `json:"policy,omitempty"`
	Node      string `json:"node,omitempty"`
	Component string `json:"component,omitempty"`
	Group     string `json:"group,omitempty"`
	Step      string `json:"step,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Subject   string `json:"subject,omitempty"`
	Detail    string `json:"detail,omitempty"`
	Hash      string `json:"hash,omitempty"`
}

// ChainAudit returns the line for a decision that follows the given line; after the zero AuditLine it is the first.
func ChainAudit(before AuditLine, d Decision) (AuditLine, error) {
	d.At = d.At.UTC().Round(0)
	d.Response, d.Policy, d.Step, d.Subject, d.Detail = validText(d.Response), validText(d.Policy), validText(d.Step), validText(d.Subject),
		validText(d.Detail)
	l := AuditLine{Seq: before.Seq + 1, Decision: d, Prev: before.Hash}
	sum, err := l.sum()
	l.Hash = sum
	return l, err
}

// validText replaces invalid UTF-8, which JSON would otherwise do silently.
func validText(s string) string { return strings.ToValidUTF8(s, "?") }

// sum computes the line's correct hash.
func (l AuditLine) sum() ([sha256.Size]byte, error) {
	b, err := l.marshal("")
	return sha256.Sum256(b), err
}

// Marshal returns the line in its export and storage form: one line of JSON without a newline.
func (l AuditLine) Marshal() ([]byte, error) { return l.marshal(hex.EncodeToString(l.Hash[:])) }

func (l AuditLine) marshal(hash string) ([]byte, error) {
	d := l.Decision
	w := writtenAudit{
		Seq: l.Seq, Prev: hex.EncodeToString(l.Prev[:]), At: d.At.UTC().Format(time.RFC3339Nano), Act: d.Act.String(), Response: d.Response,
		Policy: d.Policy,
		Node:   string(d.Target.Node), Group: d.Target.Group, Step: d.Step, Kind: string(d.Kind), Attempt: d.Attempt, Subject: d.Subject,
		Detail: d.Detail,
		Hash:   hash,
	}
	if d.Reason != 0 {
		w.Reason = d.Reason.String()
	}
	if d.Target.Node != "" {
		w.Component = d.Target.Component.String()
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(w); err != nil {
		return nil, fmt.Errorf("audit line %d: %w", l.Seq, err)
	}
	b := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if len(b) > MaxAuditLine {
		return nil, fmt.Errorf("audit line %d: %d bytes: want at most %d", l.Seq, len(b), MaxAuditLine)
	}
	return b, nil
}

// UnmarshalAudit parses the output of Marshal and rejects the same content in any other form. It does not check the hash:
// an AuditChecker does.
func UnmarshalAudit(b []byte) (AuditLine, error) {
	if len(b) > MaxAuditLine {
		return AuditLine{}, fmt.Errorf("audit line: given %d bytes: want at most %d", len(b), MaxAuditLine)
	}
	var w writtenAudit
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return AuditLine{}, fmt.Errorf("audit line: not an audit line: %w", err)
	}
	l, err := w.line()
	if err != nil {
		return AuditLine{}, fmt.Errorf("audit line %d: %w", w.Seq, err)
	}
	again, err := l.Marshal()
	if err != nil {
		return AuditLine{}, err
	}
	if !bytes.Equal(again, bytes.TrimRight(b, "\r\n")) {
		return AuditLine{}, fmt.Errorf("audit line %d: not in the form in which lines are written: its hash would be of other bytes", w.Seq)
	}
	return l, nil
}

func (w writtenAudit) line() (AuditLine, error) {
	l := AuditLine{Seq: w.Seq, Decision: Decision{
		Response: w.Response, Policy: w.Policy, Target: Target{Node: fault.NodeID(w.Node),
			Group: w.Group}, Step: w.Step, Kind: Kind(w.Kind), Attempt: w.Attempt,
		Subject: w.Subject, Detail: w.Detail,
	}}
	var errs []error
	bad := func(field, given, want string) {
		errs = append(errs, fmt.Errorf("%s: given %.80q: want %s", field, given, want))
	}
	hash := func(field, given string, to *[sha256.Size]byte) {
		if b, err := hex.DecodeString(given); err != nil || copy(to[:], b) != sha256.Size || len(b) != sha256.Size {
			bad(field, given, "64 hexadecimal digits")
		}
	}
	hash("prev", w.Prev, &l.Prev)
	hash("hash", w.Hash, &l.Hash)
	var err error
	if l.Decision.At, err = time.Parse(time.RFC3339Nano, w.At); err != nil {
		bad("at", w.At, "a time of RFC 3339")
	}
	if l.Decision.Act, err = ParseAct(w.Act); err != nil {
		errs = append(errs, err)
	}
	if l.Decision.Reason, err = ParseReason(w.Reason); err != nil {
		errs = append(errs, err)
	}
	if w.Node != "" || w.Component != "" {
		if l.Decision.Target.Component, err = fault.ParseComponent(w.Component); err != nil {
			errs = append(errs, err)
		}
	}
	return l, errors.Join(errs...)
}

// AuditChecker checks lines one after the other, as bytes. It need not understand their content, so it can also check lines
// of a later version. The zero AuditChecker accepts any line as the first; each later line has to follow the line before it.
type AuditChecker struct {
	seq, lines uint64
	hash       string
}

// Lines returns how many lines were correct.
func (c *AuditChecker) Lines() uint64 { return c.lines }

// Last returns the number and the hash of the newest correct line; 0 before there is one.
func (c *AuditChecker) Last() (seq uint64, hash string) { return c.seq, c.hash }

var noHash = strings.Repeat("0", 2*sha256.Size)

// Check reports whether anything is wrong with the next line, or with its place in the chain.
func (c *AuditChecker) Check(b []byte) error {
	b = bytes.TrimRight(b, "\r\n")
	var l struct {
		Seq  uint64 `json:"seq"`
		Prev string `json:"prev"`
		Hash string `json:"hash"`
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("audit: the line after line %d: not JSON: %w", c.seq, err)
	}
	said, whole := bytes.CutSuffix(b, fmt.Appendf(nil, `,"hash":%q}`, l.Hash))
	if !whole || !bytes.HasPrefix(b, fmt.Appendf(nil, `{"seq":%d,"prev":%q,`, l.Seq, l.Prev)) {
		return fmt.Errorf("audit line %d: not in the form in which lines are written: want seq and prev first, and hash last", l.Seq)
	}
	sum := sha256.Sum256(append(bytes.Clone(said), '}'))
	hash := hex.EncodeToString(sum[:])
	switch {
	case hash != l.Hash:
		return fmt.Errorf("audit line %d: its hash is %.16s, but its content has %.16s: it was changed", l.Seq, l.Hash, hash)
	case l.Seq == 0:
		return errors.New("audit line 0: want numbers from 1 on")
	case l.Seq == 1 && l.Prev != noHash:
		return fmt.Errorf("audit line 1: it names %.16s as the line before it, and there is none", l.Prev)
	case c.lines > 0 && l.Seq != c.seq+1:
		return fmt.Errorf("audit line %d: it comes after line %d: lines are missing, or in another order", l.Seq, c.seq)
	case c.lines > 0 && l.Prev != c.hash:
		return fmt.Errorf("audit line %d: its previous hash is %.16s, want %.16s: one of the two lines was inserted", l.Seq,
			l.Prev, c.hash)
	}
	c.seq, c.hash = l.Seq, l.Hash
	c.lines++
	return nil
}
