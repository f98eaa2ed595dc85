package pki

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestLostRevocationsAreRestored: the supervisors' list has the first of three nodes, and a node's newer list has the last two.
func TestLostRevocationsAreRestored(t *testing.T) {
	nodes, now := thousands(3), time.Now().Add(time.Hour)
	own, kept := listOf(3, nodes[:2]...), listOf(9, nodes[2:]...)
	got := RestoreDenials(own, kept, now)
	if len(got.Denials) != 6 || len(got.Again) != 4 || len(got.Extra) != 2 || len(got.Halves) != 0 {
		t.Fatalf("%d denials, %d restored, %d extra, %d halves: want 6, 4, 2, 0", len(got.Denials), len(got.Again), len(got.Extra),
			len(got.Halves))
	}
	for i, d := range got.Denials {
		want := proto.CloneOf(nodes[i])
		if i >= 2 {
			want.Revoked = timestamppb.New(now)
		}
		if !proto.Equal(d, want) {
			t.Errorf("denial %d: %v: want %v", i, d, want)
		}
	}
	if got := RestoreDenials(nil, kept, now); len(got.Denials) != 4 || len(got.Again) != 4 {
		t.Errorf("supervisors without a list: %d denials, %d restored: want 4, 4", len(got.Denials), len(got.Again))
	}
	if got := RestoreDenials(own, own, now); !slices.Equal(got.Denials, own.GetDenials()) || len(got.Again)+len(got.Extra) != 0 {
		t.Errorf("the same list: %v: want no change", got)
	}
}

// TestRestoredListIsAlwaysAccepted: whatever an operator signed, no own denial is lost or changed, no denial of the kept list is
// lost except a half alone, and the outcome adds no half alone.
func TestRestoredListIsAlwaysAccepted(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	begin := time.Now()
	some := func(version uint64) *lofamov1.DenyList {
		l := listOf(version)
		for range random.IntN(7) {
			node, half := []fault.NodeID{"n1", "n2"}[random.IntN(2)], []fault.Half{fault.HalfHost, fault.HalfDNP}[random.IntN(2)]
			id := NodeIdentity(cluster, node, half)
			if random.IntN(5) == 0 {
				id = Identity{Cluster: cluster, Role: RoleOperator, Name: "ann"}
			}
			d := denial(id)
			d.Before = timestamppb.New(begin.Add(time.Duration(random.IntN(2)) * time.Second))
			if random.IntN(5) == 0 {
				d.Before, d.Serial = nil, "1a"
			}
			l.Denials = append(l.Denials, d)
		}
		return l
	}
	restored := 0
	for range 20_000 {
		own, kept := some(1), some(2)
		got := RestoreDenials(own, kept, begin)
		next := listOf(3, got.Denials...)
		if err := CheckHalves(next, own); err != nil {
			t.Fatalf("own %v, kept %v: %v", own, kept, err)
		}
		if n := len(own.GetDenials()); !slices.Equal(got.Denials[:n], own.GetDenials()) {
			t.Fatalf("own %v, kept %v: own denials have become %v", own, kept, got.Denials[:n])
		}
		lone := alone(kept)
		for i, d := range kept.GetDenials() {
			has := slices.ContainsFunc(got.Denials, func(o *lofamov1.Denial) bool { return keyOf(o) == keyOf(d) })
			if !has && !slices.Contains(lone, i) {
				t.Fatalf("own %v, kept %v: %v is lost", own, kept, d)
			}
		}
		restored += len(got.Again)
	}
	if restored < 1000 {
		t.Fatalf("only %d denials restored: the lists prove nothing", restored)
	}
}

// TestHalfAloneIsNamedAndNotRestored: earlier builds revoked one half alone, and supervisors refuse a new list that does.
func TestHalfAloneIsNamedAndNotRestored(t *testing.T) {
	nodes := thousands(2)
	got := RestoreDenials(nil, listOf(9, nodes[0], nodes[2], nodes[3]), time.Now())
	want := Identity{cluster, Role(nodes[0].GetRole()), nodes[0].GetName()}
	if len(got.Denials) != 2 || !slices.Equal(got.Halves, []Identity{want}) {
		t.Errorf("%d denials, halves %v: want the second node, and %v alone", len(got.Denials), got.Halves, want)
	}
}

// TestKeptListIsHostileUntilVerified: revocations come only from a list of an operator whose certificate is in force now.
func TestKeptListIsHostileUntilVerified(t *testing.T) {
	w := newDenyWorld(t)
	ann, bob := w.signer(RoleOperator, "ann"), w.signer(RoleOperator, "bob")
	raw := w.signed(listOf(5, denial(victim)), ann)
	if l, err := OpenKeptDenyList(raw, w.verifier, cluster); err != nil || l.GetVersion() != 5 || l.Signer.Name != "ann" {
		t.Fatalf("version %d of %v, %v: want 5 of ann", l.GetVersion(), l.Signer, err)
	}
	damaged := slices.Clone(raw)
	damaged[len(damaged)/2] ^= 1
	for what, b := range map[string][]byte{
		"empty": nil, "cut off": raw[:len(raw)-1], "damaged": damaged, "too long": make([]byte, MaxDenyListSize+1),
	} {
		if _, err := OpenKeptDenyList(b, w.verifier, cluster); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if _, err := OpenKeptDenyList(raw, newDenyWorld(t).verifier, cluster); err == nil {
		t.Error("of another authority: accepted")
	}
	w.registry.Set([]Denial{{Identity: bob.Identity(), Before: CutOff(time.Now())}})
	if _, err := OpenKeptDenyList(w.signed(listOf(6), bob), w.verifier, cluster); !errors.Is(err, ErrRevoked) {
		t.Errorf("by a revoked operator: %v", err)
	}
	later, err := NewVerifier(w.ca.CertPEM(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	later.now = func() time.Time { return ann.Expires().Add(time.Minute) }
	if _, err := OpenDenyList(raw, later, cluster); err != nil {
		t.Errorf("in force after the signer's certificate has ended: %v: want it accepted", err)
	}
	if _, err := OpenKeptDenyList(raw, later, cluster); err == nil || !strings.Contains(err.Error(), "signed by ") {
		t.Errorf("a source after the signer's certificate has ended: %v: want an error that names the signer", err)
	}
}

// TestRestoredRevocationEndsLogins: a person logs in while the supervisors have lost the revocation. The restored one refuses the
// same certificates as before, and ends the login.
func TestRestoredRevocationEndsLogins(t *testing.T) {
	w := newDenyWorld(t)
	ann := Identity{Cluster: cluster, Role: RoleViewer, Name: "ann"}
	d := denial(ann)
	d.Before, d.Revoked = timestamppb.New(CutOff(time.Now().AddDate(0, 0, -3))), timestamppb.New(time.Now().AddDate(0, 0, -3))
	got := RestoreDenials(nil, listOf(9, d), time.Now())
	l, err := OpenDenyList(w.signed(listOf(10, got.Denials...), w.signer(RoleOperator, "o")), w.verifier, cluster)
	if err != nil {
		t.Fatal(err)
	}
	w.registry.Set(l.Denials())
	if !w.verifier.RevokedSince("viewer/ann", time.Now().Add(-time.Hour)) {
		t.Error("a login of an hour ago, after the revocation and before its restore, stays")
	}
	if w.verifier.RevokedSince("viewer/ann", time.Now().Add(time.Second)) {
		t.Error("a login after the restore, with a new certificate, ends")
	}
	fresh := w.signer(RoleViewer, "ann")
	if _, _, err := w.verifier.VerifyStatement("x", fresh.Cert(), []byte("y"), fresh.SignStatement("x", []byte("y"))); err != nil {
		t.Errorf("a certificate from after the revocation: %v", err)
	}
}

// FuzzOpenKeptDenyList: OpenKeptDenyList accepts only lists that an operator has signed. Each can be restored beside a list of a
// supervisor.
func FuzzOpenKeptDenyList(f *testing.F) {
	v, only := seedDenyList(f, 2)
	own := listOf(1, thousands(1)...)
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := OpenKeptDenyList(raw, v, cluster)
		if err != nil {
			return
		}
		if !proto.Equal(l.DenyList, only) {
			t.Errorf("%v: differs from the signed list", l)
		}
		if err := CheckHalves(listOf(3, RestoreDenials(own, l.DenyList, time.Now()).Denials...), own); err != nil {
			t.Errorf("%v: %v", l, err)
		}
	})
}
