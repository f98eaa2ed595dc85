package pki

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Limits of a list.
const (
	MaxDenials      = 4096
	MaxDenialReason = 120 // bytes
	// MaxVersionJump is how far the version of a new list, or of one that a node claims to have, may exceed the known ones. Without
	// it, one list could have the highest version of all, and no list could follow.
	MaxVersionJump = 1 << 20
	// MaxDenyListSize is the maximum size of a marshalled SignedDenyList in bytes. Compressed, it also has to fit the DenyPart
	// messages.
	MaxDenyListSize = servicenet.MaxDenySize
)

// DenyListFile is the name of the list in a state directory.
const DenyListFile = "revoked"

// denyListStatement separates signatures over lists from all others.
const denyListStatement = "deny-list"

// DenyList is a verified list of revoked certificates.
//
// An operator signs the whole list. The list has a version, and the highest version wins everywhere. Supervisors store
// the list and pass it on, but cannot change it: the thief of a supervisor's key can neither revoke an identity nor
// revert a revocation. A list signed by a revoked operator is refused.
type DenyList struct {
	*lofamov1.DenyList
	Signer Identity
	Raw    []byte // the marshalled SignedDenyList

	parts func() []*lofamov1.DenyPart // splits Raw once
}

func newDenyList(l *lofamov1.DenyList, signer Identity, raw []byte) DenyList {
	return DenyList{l, signer, raw, sync.OnceValue(func() []*lofamov1.DenyPart { return split(l.GetVersion(), raw) })}
}

// SignDenyList validates a list and signs it as an operator. Errors name the bad field.
func SignDenyList(l *lofamov1.DenyList, s *Signer) (*lofamov1.SignedDenyList, error) {
	if s.Identity().Role != RoleOperator {
		return nil, fmt.Errorf("sign deny list: certificate is of %s: want an operator's", s.Identity())
	}
	if _, err := check(l, s.Identity().Cluster); err != nil {
		return nil, fmt.Errorf("sign deny list: %w", err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(l)
	if err != nil {
		return nil, fmt.Errorf("sign deny list: %w", err)
	}
	out := &lofamov1.SignedDenyList{List: b, Certificate: s.Cert(), Signature: s.SignStatement(denyListStatement, b)}
	raw, err := proto.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("sign deny list: %w", err)
	}
	if err := newDenyList(l, s.Identity(), raw).Fits(); err != nil {
		return nil, fmt.Errorf("sign deny list: %w", err)
	}
	return out, nil
}

// Fits returns an error if the list is larger than nodes accept.
func (l DenyList) Fits() error {
	if len(l.Raw) > MaxDenyListSize {
		return fmt.Errorf("%d bytes: want at most %d: %s", len(l.Raw), MaxDenyListSize, shorten)
	}
	if n := len(l.Parts()); n > servicenet.MaxDenyParts {
		return fmt.Errorf("%d bytes take %d datagrams: want at most %d: %s", len(l.Raw), n, servicenet.MaxDenyParts, shorten)
	}
	return nil
}

const shorten = "shorten the reasons, repeat the same one, or remove denials of expired certificates"

// maxPlain is the largest size of a list that is sent uncompressed.
const maxPlain = servicenet.MaxPlainParts * servicenet.MaxDenyData

// pack compresses a list.
func pack(raw []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestCompression) // fails only for an invalid level
	_, _ = w.Write(raw)                                // a buffer never fails
	_ = w.Close()
	return b.Bytes()
}

// unpack reverses pack. It returns an error unless the list has the given size.
func unpack(packed []byte, size uint32) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), int64(size)+1))
	if err == nil && len(raw) != int(size) {
		err = fmt.Errorf("want exactly %d bytes", size)
	}
	if err != nil {
		return nil, fmt.Errorf("deny list: decompress %d bytes: %w", len(packed), err)
	}
	return raw, nil
}

// OpenDenyList verifies a marshalled SignedDenyList.
func OpenDenyList(raw []byte, v *Verifier, cluster string) (DenyList, error) {
	l, err := open(raw, v, cluster)
	if err != nil {
		return DenyList{}, fmt.Errorf("deny list: %w", err)
	}
	return l, nil
}

func open(raw []byte, v *Verifier, cluster string) (DenyList, error) {
	if len(raw) > MaxDenyListSize {
		return DenyList{}, fmt.Errorf("%d bytes: want at most %d", len(raw), MaxDenyListSize)
	}
	signed, l := new(lofamov1.SignedDenyList), new(lofamov1.DenyList)
	if err := proto.Unmarshal(raw, signed); err != nil {
		return DenyList{}, err
	}
	if err := proto.Unmarshal(signed.GetList(), l); err != nil {
		return DenyList{}, err
	}
	if _, err := check(l, cluster); err != nil {
		return DenyList{}, err
	}
	id, err := v.VerifyStatementAt(l.GetIssued().AsTime(), denyListStatement, signed.GetCertificate(), signed.GetList(), signed.GetSignature())
	if err != nil {
		return DenyList{}, err
	}
	if id.Role != RoleOperator {
		return DenyList{}, fmt.Errorf("signed by %s: want an operator", id)
	}
	return newDenyList(l, id, slices.Clone(raw)), nil
}

// Denials returns the list for a Registry.
func (l DenyList) Denials() []Denial {
	out, _ := check(l.DenyList, l.GetCluster()) // checked before
	return out
}

// check validates a list and returns its denials.
func check(l *lofamov1.DenyList, cluster string) ([]Denial, error) {
	switch n := len(l.GetDenials()); {
	case l.GetCluster() != cluster:
		return nil, fmt.Errorf("cluster: given %q: want %q", l.GetCluster(), cluster)
	case l.GetVersion() == 0:
		return nil, errors.New("version: given 0: want at least 1")
	case l.GetIssued() == nil || l.GetIssued().CheckValid() != nil:
		return nil, errors.New("issued: missing or out of range: want the time of signing")
	case n > MaxDenials:
		return nil, fmt.Errorf("denials: given %d: want at most %d", n, MaxDenials)
	}
	out := make([]Denial, 0, len(l.GetDenials()))
	for i, d := range l.GetDenials() {
		one, err := checkDenial(d, cluster)
		if err != nil {
			return nil, fmt.Errorf("denials[%d].%w", i, err)
		}
		out = append(out, one)
	}
	return out, nil
}

// CheckHalves returns an error if a list revokes only one half of a node. The neighbours would refuse its links, or
// supervisors its reports, while the other half still reports for the node: working links would be called FAILED. It
// accepts denials that the list before (nil: none) has too and that revoke one half there: earlier builds made such
// lists, and an operator must be able to change them.
func CheckHalves(l, before *lofamov1.DenyList) error {
	old := make(map[string]bool)
	for _, i := range alone(before) {
		old[keyOf(before.GetDenials()[i])] = true
	}
	for _, i := range alone(l) {
		d := l.GetDenials()[i]
		switch {
		case old[keyOf(d)]:
		case d.GetSerial() != "":
			return fmt.Errorf("denials[%d].serial: given %q for %s: want before instead, for both halves of the node", i, d.GetSerial(), d.GetName())
		default:
			return fmt.Errorf("denials[%d].name: given only %s: want both halves of the node, with the same before", i, d.GetName())
		}
	}
	return nil
}

// keyOf returns a text that is the same for denials of the same certificates.
func keyOf(d *lofamov1.Denial) string {
	return fmt.Sprint(d.GetRole(), "/", d.GetName(), " ", d.GetSerial(), " ", d.GetBefore().AsTime().UnixNano())
}

// alone returns the indexes of denials that revoke certificates of one half of a node and not of the other.
func alone(l *lofamov1.DenyList) []int {
	type half struct {
		fault.Origin
		before time.Time
	}
	of := func(d *lofamov1.Denial) (half, bool) {
		o, ok := Identity{Cluster: l.GetCluster(), Role: Role(d.GetRole()), Name: d.GetName()}.Origin()
		return half{o, d.GetBefore().AsTime()}, ok
	}
	revoked := make(map[half]bool)
	for _, d := range l.GetDenials() {
		if h, ok := of(d); ok && d.GetSerial() == "" {
			revoked[h] = true
		}
	}
	var out []int
	for i, d := range l.GetDenials() {
		h, node := of(d)
		h.Half = h.Half.Other()
		if node && (d.GetSerial() != "" || !revoked[h]) {
			out = append(out, i)
		}
	}
	return out
}

func checkDenial(d *lofamov1.Denial, cluster string) (Denial, error) {
	id := Identity{Cluster: cluster, Role: Role(d.GetRole()), Name: d.GetName()}
	out := Denial{Identity: id, Serial: d.GetSerial(), Revoked: d.GetRevoked().AsTime()}
	if err := id.Validate(); err != nil {
		return out, err
	}
	if len(d.GetReason()) > MaxDenialReason || !fault.IsText(d.GetReason()) {
		return out, fmt.Errorf("reason: given %q: want at most %d bytes without control characters", d.GetReason(), MaxDenialReason)
	}
	if d.GetSerial() != "" {
		if n, ok := new(big.Int).SetString(d.GetSerial(), 16); !ok || n.Sign() <= 0 || n.Text(16) != d.GetSerial() {
			return out, fmt.Errorf("serial: given %q: want lower-case hexadecimal without leading zeros", d.GetSerial())
		}
		return out, nil
	}
	if d.GetBefore() == nil || d.GetBefore().CheckValid() != nil {
		return out, errors.New("before: missing or out of range: want a time, or a serial")
	}
	out.Before = d.GetBefore().AsTime()
	return out, nil
}

// DenyListKeeper holds a process's newest list: verified, in force in its registry, and stored on disk if a directory is given.
// Only one goroutine may use it.
type DenyListKeeper struct {
	verifier *Verifier
	registry *Registry
	cluster  string
	path     string // "": not stored on disk
	now      DenyList
	coming   map[string]*incoming // by supervisor
}

// incoming is a list with missing parts. Parts from different supervisors are never mixed, because two supervisors may
// send different lists of the same version, or compress the same list differently.
type incoming struct {
	version uint64
	count   uint32
	size    uint32 // see DenyPart.size
	parts   map[uint32][]byte
}

// maxSenders limits the supervisors whose unfinished lists are kept.
const maxSenders = 16

// NewDenyListKeeper returns a keeper. With a directory it loads the list stored there; lost is the reason if it could not.
func NewDenyListKeeper(dir, cluster string, v *Verifier, r *Registry) (k *DenyListKeeper, lost error) {
	k = &DenyListKeeper{verifier: v, registry: r, cluster: cluster, now: DenyList{DenyList: &lofamov1.DenyList{}},
		coming: make(map[string]*incoming)}
	if dir == "" {
		return k, nil
	}
	k.path = filepath.Join(dir, DenyListFile)
	_, lost = k.Reload()
	return k, lost
}

// Reload loads the list on disk if it is newer, and reports whether it did.
func (k *DenyListKeeper) Reload() (bool, error) {
	raw, err := durable.Load(k.path, "deny list", MaxDenyListSize, nil, func(b []byte) ([]byte, error) { return slices.Clone(b), nil })
	if err != nil || raw == nil {
		return false, err
	}
	l, err := OpenDenyList(raw, k.verifier, k.cluster)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.path, err)
	}
	return k.use(l), nil
}

// List returns the list in force; its version is 0 before the first.
func (k *DenyListKeeper) List() DenyList { return k.now }

// use puts a verified list in force, if it is newer.
func (k *DenyListKeeper) use(l DenyList) bool {
	if l.GetVersion() <= k.now.GetVersion() {
		return false
	}
	k.now = l
	maps.DeleteFunc(k.coming, func(_ string, in *incoming) bool { return in.version <= l.GetVersion() })
	k.registry.Set(l.Denials())
	return true
}

// Take verifies a list and, if it is newer, puts it in force and stores it. A disk error leaves the list in force.
func (k *DenyListKeeper) Take(raw []byte) (taken bool, err error) {
	l, err := OpenDenyList(raw, k.verifier, k.cluster)
	if err != nil {
		return false, err
	}
	return k.TakeList(l)
}

// TakeList is Take for a list that OpenDenyList has verified.
func (k *DenyListKeeper) TakeList(l DenyList) (taken bool, err error) {
	if !k.use(l) {
		return false, nil
	}
	return true, k.Persist()
}

// Persist stores the list in force on disk again, if there are a list and a directory.
func (k *DenyListKeeper) Persist() error {
	if k.path == "" || len(k.now.Raw) == 0 {
		return nil
	}
	if err := durable.Replace(k.path, k.now.Raw); err != nil {
		return fmt.Errorf("keep deny list %s: %w", k.path, err)
	}
	return nil
}

// Part collects a part of a list that a supervisor sent, and applies the list with its last part.
func (k *DenyListKeeper) Part(supervisor string, p *lofamov1.DenyPart) (taken bool, err error) {
	if p.GetVersion() <= k.now.GetVersion() {
		return false, nil
	}
	in := k.coming[supervisor]
	if in == nil || p.GetVersion() != in.version || p.GetParts() != in.count || p.GetSize() != in.size {
		if in == nil && len(k.coming) == maxSenders {
			clear(k.coming) // supervisors send their lists again
		}
		in = &incoming{p.GetVersion(), p.GetParts(), p.GetSize(), make(map[uint32][]byte)}
		k.coming[supervisor] = in
	}
	in.parts[p.GetPart()] = slices.Clone(p.GetData())
	if len(in.parts) < int(in.count) {
		return false, nil
	}
	delete(k.coming, supervisor)
	var raw []byte
	for i := range in.count {
		raw = append(raw, in.parts[i]...)
	}
	if in.size > 0 {
		if raw, err = unpack(raw, in.size); err != nil {
			return false, err
		}
	}
	return k.Take(raw)
}

// Parts returns the list in messages for nodes. They are made once: the caller must not change them.
func (l DenyList) Parts() []*lofamov1.DenyPart {
	if l.parts == nil { // no list
		return nil
	}
	return l.parts()
}

func split(version uint64, raw []byte) []*lofamov1.DenyPart {
	var out []*lofamov1.DenyPart
	sent, size := raw, uint32(0)
	if len(sent) > maxPlain {
		sent, size = pack(raw), uint32(len(raw))
	}
	for data := range slices.Chunk(sent, servicenet.MaxDenyData) {
		out = append(out, &lofamov1.DenyPart{Version: version, Part: uint32(len(out)), Data: data, Size: size})
	}
	for _, p := range out {
		p.Parts = uint32(len(out))
	}
	return out
}
