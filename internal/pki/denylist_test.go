package pki

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const cluster = "c1"

var victim = NodeIdentity(cluster, "n1", fault.HalfHost)

type denyWorld struct {
	*testing.T
	ca       *CA
	registry *Registry
	verifier *Verifier
}

func newDenyWorld(t *testing.T) *denyWorld {
	t.Helper()
	ca, err := NewCA(cluster)
	if err != nil {
		t.Fatal(err)
	}
	w := &denyWorld{T: t, ca: ca, registry: NewRegistry()}
	if w.verifier, err = NewVerifier(ca.CertPEM(), cluster, WithRegistry(w.registry)); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *denyWorld) signer(role Role, name string) *Signer {
	w.Helper()
	s, err := w.ca.IssueSigner(Identity{Cluster: cluster, Role: role, Name: name})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func listOf(version uint64, denials ...*lofamov1.Denial) *lofamov1.DenyList {
	return &lofamov1.DenyList{Cluster: cluster, Version: version, Issued: timestamppb.Now(), Denials: denials}
}

func denial(id Identity) *lofamov1.Denial {
	return &lofamov1.Denial{Role: string(id.Role), Name: id.Name, Before: timestamppb.New(CutOff(time.Now())),
		Revoked: timestamppb.Now(), By: "operator/o", Reason: "lost"}
}

func (w *denyWorld) signed(l *lofamov1.DenyList, s *Signer) []byte {
	w.Helper()
	signed, err := SignDenyList(l, s)
	if err != nil {
		w.Fatal(err)
	}
	b, err := proto.Marshal(signed)
	if err != nil {
		w.Fatal(err)
	}
	return b
}

// TestOldCertificateIsRefusedAndNewOneAccepted: the same identity, before and after.
func TestOldCertificateIsRefusedAndNewOneAccepted(t *testing.T) {
	w := newDenyWorld(t)
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	old, message := w.signer(RoleNode, "n1/host"), []byte("report")
	verify := func(s *Signer) error { _, err := w.verifier.Verify(s.Cert(), message, s.Sign(message)); return err }
	if err := verify(old); err != nil {
		t.Fatal(err)
	}
	if taken, err := k.Take(w.signed(listOf(1, denial(victim)), w.signer(RoleOperator, "o"))); !taken || err != nil {
		t.Fatalf("taken %t, %v", taken, err)
	}
	if err := verify(old); !errors.Is(err, ErrRevoked) || !errors.Is(err, ErrCertificate) {
		t.Errorf("the revoked certificate: %v: want ErrRevoked and ErrCertificate", err)
	}
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Interest{Interest: &lofamov1.Interest{Node: "n1", Epoch: 1,
		Serial: 1, Parts: 1}}}, old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servicenet.Open(b, w.verifier); servicenet.RefusalOf(err) != servicenet.RefusedRevoked {
		t.Errorf("an envelope of it: %v: want the class revoked", err)
	}
	if err := verify(w.signer(RoleNode, "n2/host")); err != nil {
		t.Errorf("another node: %v", err)
	}
	for end := time.Now().Add(time.Minute); ; { // certificates begin on whole seconds
		if err = verify(w.signer(RoleNode, "n1/host")); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		t.Errorf("a certificate that was issued after the revocation: %v", err)
	}
	if err := verify(old); err == nil {
		t.Error("the old certificate is good again")
	}
}

// TestSerialRevokesOneCertificate: and no other of its identity.
func TestSerialRevokesOneCertificate(t *testing.T) {
	w := newDenyWorld(t)
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	a, b, message := w.signer(RoleNode, "n1/host"), w.signer(RoleNode, "n1/host"), []byte("x")
	if _, err := w.verifier.Verify(a.Cert(), message, a.Sign(message)); err != nil {
		t.Fatal(err)
	}
	d := denial(victim)
	d.Before, d.Serial = nil, w.registry.Seen()[0].Serial
	if taken, err := k.Take(w.signed(listOf(1, d), w.signer(RoleOperator, "o"))); !taken || err != nil {
		t.Fatalf("taken %t, %v", taken, err)
	}
	if _, err := w.verifier.Verify(a.Cert(), message, a.Sign(message)); !errors.Is(err, ErrRevoked) {
		t.Errorf("the one of that serial number: %v", err)
	}
	if _, err := w.verifier.Verify(b.Cert(), message, b.Sign(message)); err != nil {
		t.Errorf("another one: %v", err)
	}
}

// TestHighestVersionStays checks that the highest version survives restarts, in any order of lists.
func TestHighestVersionStays(t *testing.T) {
	w, dir := newDenyWorld(t), t.TempDir()
	op := w.signer(RoleOperator, "o")
	k, lost := NewDenyListKeeper(dir, cluster, w.verifier, w.registry)
	if lost != nil {
		t.Fatal(lost)
	}
	two := w.signed(listOf(2, denial(victim)), op)
	if taken, err := k.Take(two); !taken || err != nil {
		t.Fatalf("taken %t, %v", taken, err)
	}
	if taken, err := k.Take(w.signed(listOf(1), op)); taken || err != nil {
		t.Errorf("an earlier version: taken %t, %v", taken, err)
	}
	again := NewRegistry()
	k, lost = NewDenyListKeeper(dir, cluster, w.verifier, again)
	if lost != nil || k.List().GetVersion() != 2 || len(again.Denied()[victim]) == 0 {
		t.Errorf("after a restart: version %d, %v", k.List().GetVersion(), lost)
	}
	if err := os.WriteFile(filepath.Join(dir, DenyListFile), two[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, lost = NewDenyListKeeper(dir, cluster, w.verifier, NewRegistry()); lost == nil || !strings.Contains(lost.Error(), DenyListFile) {
		t.Errorf("a garbled file: %v: want an error that names it", lost)
	}
}

// TestListInParts: parts in any order, repeated, and of two versions mixed.
func TestListInParts(t *testing.T) {
	w := newDenyWorld(t)
	op := w.signer(RoleOperator, "o")
	var many []*lofamov1.Denial
	for range 40 {
		many = append(many, denial(victim))
	}
	parts := func(version uint64) []*lofamov1.DenyPart {
		l, err := OpenDenyList(w.signed(listOf(version, many...), op), w.verifier, cluster)
		if err != nil {
			t.Fatal(err)
		}
		return l.Parts()
	}
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	one, two := parts(1), parts(2)
	if len(one) < 3 {
		t.Fatalf("%d parts: want several", len(one))
	}
	for _, p := range one[1:] {
		if taken, err := k.Part("s1", p); taken || err != nil {
			t.Fatalf("part %d of version 1: taken %t, %v", p.GetPart(), taken, err)
		}
	}
	for i := range two {
		p := two[len(two)-1-i]
		taken, err := k.Part("s1", p)
		if last := i == len(two)-1; taken != last || err != nil {
			t.Errorf("part %d of version 2: taken %t, %v", p.GetPart(), taken, err)
		}
		if _, err := k.Part("s1", p); err != nil {
			t.Error(err)
		}
	}
	if taken, _ := k.Part("s1", one[0]); taken || k.List().GetVersion() != 2 {
		t.Errorf("a part of the version before: taken %t, version %d", taken, k.List().GetVersion())
	}
}

// TestPartsOfTwoSupervisorsAreNotMixed: two supervisors send different lists of one version and size, alternately, so
// that each list is complete only in the second round.
func TestPartsOfTwoSupervisorsAreNotMixed(t *testing.T) {
	w := newDenyWorld(t)
	op := w.signer(RoleOperator, "o")
	parts := func(reason string) []*lofamov1.DenyPart {
		list := thousands(10)
		list[0].Reason = reason
		l, err := OpenDenyList(w.signed(listOf(1, list...), op), w.verifier, cluster)
		if err != nil {
			t.Fatal(err)
		}
		return l.Parts()
	}
	one, two := parts("stolen"), parts("broken")
	if len(one) < 2 || len(one) != len(two) || one[0].GetSize() != two[0].GetSize() {
		t.Fatalf("%d and %d parts: want several, and as many", len(one), len(two))
	}
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	taken := 0
	for round := range 2 {
		for i := range one {
			sender, p := "s1", one[i]
			if i%2 != round {
				sender, p = "s2", two[i]
			}
			now, err := k.Part(sender, p)
			if err != nil {
				t.Errorf("round %d, part %d of %s: %v", round, i, sender, err)
			}
			if now {
				taken++
			}
		}
	}
	if taken != 1 || len(k.coming) > 0 {
		t.Errorf("taken %d times, %d lists are unfinished: want one, and none", taken, len(k.coming))
	}
	for i := range 2 * maxSenders {
		p := one[0]
		p.Version = 2
		if _, err := k.Part(fmt.Sprint("s", i), p); err != nil || len(k.coming) > maxSenders {
			t.Fatalf("%d unfinished lists, %v: want at most %d", len(k.coming), err, maxSenders)
		}
	}
}

// TestRefusedLists checks lists with a signature that does not count, and lists without content.
func TestRefusedLists(t *testing.T) {
	w := newDenyWorld(t)
	op, sup := w.signer(RoleOperator, "o"), w.signer(RoleSupervisor, "s0")
	bad := func(change func(*lofamov1.DenyList)) *lofamov1.DenyList {
		l := listOf(1, denial(victim))
		change(l)
		return l
	}
	for want, l := range map[string]*lofamov1.DenyList{
		`cluster: given "other"`:        bad(func(l *lofamov1.DenyList) { l.Cluster = "other" }),
		"version: given 0":              bad(func(l *lofamov1.DenyList) { l.Version = 0 }),
		"issued: missing":               bad(func(l *lofamov1.DenyList) { l.Issued = nil }),
		"denials[0].before: missing":    bad(func(l *lofamov1.DenyList) { l.Denials[0].Before = nil }),
		`denials[0].identity: role "x"`: bad(func(l *lofamov1.DenyList) { l.Denials[0].Role = "x" }),
		`denials[0].serial: given "0F"`: bad(func(l *lofamov1.DenyList) { l.Denials[0].Serial = "0F" }),
		"denials[0].reason":             bad(func(l *lofamov1.DenyList) { l.Denials[0].Reason = strings.Repeat("x", MaxDenialReason+1) }),
		"denials: given 4097":           bad(func(l *lofamov1.DenyList) { l.Denials = make([]*lofamov1.Denial, MaxDenials+1) }),
	} {
		if _, err := SignDenyList(l, op); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if _, err := SignDenyList(listOf(1), sup); err == nil || !strings.Contains(err.Error(), "want an operator's") {
		t.Errorf("signed by a supervisor: %v", err)
	}
	// A compromised supervisor could try its own key, and an operator's signature for something else.
	b, err := proto.Marshal(listOf(9, denial(victim)))
	if err != nil {
		t.Fatal(err)
	}
	for name, signed := range map[string]*lofamov1.SignedDenyList{
		"by a supervisor": {List: b, Certificate: sup.Cert(), Signature: sup.SignStatement(denyListStatement, b)},
		"as a message":    {List: b, Certificate: op.Cert(), Signature: op.Sign(b)},
		"by nobody":       {List: b, Certificate: op.Cert(), Signature: make([]byte, 64)},
	} {
		raw, err := proto.Marshal(signed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDenyList(raw, w.verifier, cluster); err == nil {
			t.Errorf("signed %s: accepted", name)
		}
	}
	if _, err := OpenDenyList(make([]byte, MaxDenyListSize+1), w.verifier, cluster); err == nil ||
		!strings.Contains(err.Error(), "want at most") {
		t.Errorf("too long: %v", err)
	}
	// A revoked operator cannot sign lists.
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	other := w.signer(RoleOperator, "other")
	if _, err := k.Take(w.signed(listOf(1, denial(op.Identity())), other)); err != nil {
		t.Fatal(err)
	}
	if taken, err := k.Take(w.signed(listOf(2), op)); taken || !errors.Is(err, ErrRevoked) {
		t.Errorf("by a revoked operator: taken %t, %v", taken, err)
	}
}

func FuzzOpenDenyList(f *testing.F) {
	v, only := seedDenyList(f, 1)
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := OpenDenyList(raw, v, cluster)
		if err == nil && !proto.Equal(l.DenyList, only) {
			t.Errorf("accepted %v: want only the signed list", l)
		}
	})
}

// seedDenyList adds the only list that an operator has signed to the corpus, and returns it with a verifier.
func seedDenyList(f *testing.F, version uint64) (*Verifier, *lofamov1.DenyList) {
	f.Helper()
	ca, err := NewCA(cluster)
	if err != nil {
		f.Fatal(err)
	}
	v, err := NewVerifier(ca.CertPEM(), cluster)
	if err != nil {
		f.Fatal(err)
	}
	op, err := ca.IssueSigner(Identity{Cluster: cluster, Role: RoleOperator, Name: "o"})
	if err != nil {
		f.Fatal(err)
	}
	signed, err := SignDenyList(listOf(version, denial(victim)), op)
	if err != nil {
		f.Fatal(err)
	}
	good, err := proto.Marshal(signed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	return v, listOfRaw(signed.GetList())
}

func listOfRaw(b []byte) *lofamov1.DenyList {
	l := new(lofamov1.DenyList)
	_ = proto.Unmarshal(b, l)
	return l
}

// thousands revokes both halves of each node.
func thousands(nodes int) []*lofamov1.Denial {
	var out []*lofamov1.Denial
	for i := range nodes {
		for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			d := denial(NodeIdentity(cluster, fault.NodeID(fmt.Sprintf("rack%02d-node%04d", i/48, i)), half))
			d.Reason = "hall 7 was broken into"
			out = append(out, d)
		}
	}
	return out
}

// TestListHoldsThousandsOfNodes revokes 2,048 nodes, passes the parts on in any order and twice, and refuses one more.
func TestListHoldsThousandsOfNodes(t *testing.T) {
	w := newDenyWorld(t)
	op := w.signer(RoleOperator, "o")
	raw := w.signed(listOf(1, thousands(MaxDenials/2)...), op)
	l, err := OpenDenyList(raw, w.verifier, cluster)
	if err != nil {
		t.Fatal(err)
	}
	parts := l.Parts()
	t.Logf("%d denials: %d bytes, %d messages", len(l.GetDenials()), len(raw), len(parts))
	if len(parts) > servicenet.MaxDenyParts {
		t.Errorf("%d parts: want at most %d", len(parts), servicenet.MaxDenyParts)
	}
	if again := l.Parts(); again[0] != parts[0] {
		t.Error("the list was compressed twice")
	}
	k, _ := NewDenyListKeeper(t.TempDir(), cluster, w.verifier, w.registry)
	taken, supervisor := false, w.signer(RoleSupervisor, "s1")
	for _, i := range append(rand.Perm(len(parts)), rand.Perm(len(parts))...) {
		b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_DenyPart{DenyPart: parts[i]}}, supervisor)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := servicenet.Open(b, w.verifier); err != nil {
			t.Fatal(err)
		}
		now, err := k.Part("s1", parts[i])
		if err != nil {
			t.Fatal(err)
		}
		taken = taken || now
	}
	if last := NodeIdentity(cluster, fault.NodeID(fmt.Sprintf("rack%02d-node%04d", 2047/48, 2047)), fault.HalfDNP); !taken ||
		len(w.registry.Denied()[last]) == 0 {
		t.Errorf("taken %t, the last node is denied: %t", taken, len(w.registry.Denied()[last]) > 0)
	}
	if _, err := SignDenyList(listOf(2, thousands(MaxDenials/2+1)...), op); err == nil || !strings.Contains(err.Error(), "want at most 4096") {
		t.Errorf("one node more: %v: want an error with the limit", err)
	}
}

// TestSmallListGoesUncompressed: agents of earlier versions take it.
func TestSmallListGoesUncompressed(t *testing.T) {
	w := newDenyWorld(t)
	l, err := OpenDenyList(w.signed(listOf(1, thousands(60)...), w.signer(RoleOperator, "o")), w.verifier, cluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Parts() {
		if p.GetSize() != 0 || p.GetParts() > servicenet.MaxPlainParts {
			t.Fatalf("%d bytes: part with size %d of %d parts: want no size and at most %d", len(l.Raw), p.GetSize(), p.GetParts(),
				servicenet.MaxPlainParts)
		}
	}
}

// TestWrongCompressionIsRefused: a list that unpacks to another size than announced is refused, and the next one is
// accepted.
func TestWrongCompressionIsRefused(t *testing.T) {
	w := newDenyWorld(t)
	k, _ := NewDenyListKeeper("", cluster, w.verifier, w.registry)
	bomb := pack(make([]byte, 64<<20))
	for i, data := range slices.Collect(slices.Chunk(bomb[:servicenet.MaxDenyParts*10], servicenet.MaxDenyData)) {
		p := &lofamov1.DenyPart{Version: 1, Part: uint32(i), Parts: 2, Data: data, Size: servicenet.MaxDenySize}
		if taken, err := k.Part("s1", p); taken || i == 1 && (err == nil || !strings.Contains(err.Error(), "decompress")) {
			t.Errorf("part %d: taken %t, %v: want an error of the last", i, taken, err)
		}
	}
	l, err := OpenDenyList(w.signed(listOf(1, thousands(500)...), w.signer(RoleOperator, "o")), w.verifier, cluster)
	if err != nil {
		t.Fatal(err)
	}
	taken := false
	for _, p := range l.Parts() {
		if taken, err = k.Part("s1", p); err != nil {
			t.Fatal(err)
		}
	}
	if !taken {
		t.Error("the next list is refused")
	}
}

// TestOneHalfIsRefused: a list names both halves of a node, by the same time.
func TestOneHalfIsRefused(t *testing.T) {
	both := thousands(2)
	if err := CheckHalves(listOf(1, both...), nil); err != nil {
		t.Errorf("both halves: %v", err)
	}
	if err := CheckHalves(listOf(1, both[:3]...), nil); err == nil || !strings.Contains(err.Error(), "denials[2].name") ||
		!strings.Contains(err.Error(), "both halves") {
		t.Errorf("one half: %v: want an error that names it", err)
	}
	both[1].Before = timestamppb.New(time.Now().Add(-time.Hour))
	if err := CheckHalves(listOf(1, both...), nil); err == nil {
		t.Error("two times for one node are accepted")
	}
	both[1].Before, both[1].Serial = nil, "1a"
	if err := CheckHalves(listOf(1, both[1:]...), nil); err == nil || !strings.Contains(err.Error(), "denials[0].serial") {
		t.Errorf("a serial number: %v: want an error that names it", err)
	}
}

// TestHalvesOfEarlierListsStayChangeable: a list that an earlier build accepted with one half, or one serial number, of
// a node can be added to and be emptied. No new half comes in that way.
func TestHalvesOfEarlierListsStayChangeable(t *testing.T) {
	both := thousands(3)
	serial := denial(victim)
	serial.Before, serial.Serial = nil, "1a"
	was := listOf(1, both[0], serial, both[4], both[5]) // the host half of the first node, the certificate of another, all of the third
	for what, l := range map[string]*lofamov1.DenyList{
		"the same":          listOf(2, was.GetDenials()...),
		"a node more":       listOf(2, append(slices.Clone(was.GetDenials()), both[2], both[3])...),
		"the half removed":  listOf(2, serial, both[4], both[5]),
		"the serial number": listOf(2, both[0], both[4], both[5]),
		"the other half":    listOf(2, both[0], both[1], serial, both[4], both[5]),
		"all removed":       listOf(2),
	} {
		if err := CheckHalves(l, was); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	later := proto.CloneOf(both[0])
	later.Before = timestamppb.New(later.GetBefore().AsTime().Add(time.Second))
	for what, l := range map[string]*lofamov1.DenyList{
		"another node's half":   listOf(2, both[0], serial, both[2]),
		"half of a whole node":  listOf(2, both[0], serial, both[4]),
		"the half, longer":      listOf(2, later),
		"without a list before": nil,
	} {
		before := was
		if l == nil {
			l, before = was, nil
		}
		if err := CheckHalves(l, before); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}

// FuzzUnpack: no bytes unpack to more than the announced size, and unpack reverses pack.
func FuzzUnpack(f *testing.F) {
	f.Add(pack([]byte("a list")), uint32(6))
	f.Add(pack(make([]byte, servicenet.MaxDenySize+1)), uint32(servicenet.MaxDenySize))
	f.Fuzz(func(t *testing.T, b []byte, size uint32) {
		size %= servicenet.MaxDenySize + 1
		if raw, err := unpack(b, size); err == nil && len(raw) != int(size) {
			t.Errorf("%d bytes unpacked to %d, announced were %d", len(b), len(raw), size)
		}
		if raw, err := unpack(pack(b), uint32(len(b))); err != nil || !bytes.Equal(raw, b) {
			t.Errorf("%d bytes came back as %d, %v", len(b), len(raw), err)
		}
	})
}
