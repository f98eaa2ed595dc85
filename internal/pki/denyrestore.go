package pki

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// OpenKeptDenyList verifies the list that a node or an executor process kept in its DenyListFile, before an operator
// takes revocations from it. Unlike OpenDenyList, it requires that the signer's certificate is valid now, because the key of
// an expired certificate can sign a list with an earlier date.
func OpenKeptDenyList(raw []byte, v *Verifier, cluster string) (DenyList, error) {
	l, err := OpenDenyList(raw, v, cluster)
	if err != nil {
		return DenyList{}, err
	}
	signed := new(lofamov1.SignedDenyList)
	if err := proto.Unmarshal(raw, signed); err != nil {
		return DenyList{}, fmt.Errorf("deny list: %w", err)
	}
	if _, _, err := v.VerifyStatement(denyListStatement, signed.GetCertificate(), signed.GetList(), signed.GetSignature()); err != nil {
		return DenyList{}, fmt.Errorf("deny list: signed by %s: %w", l.Signer, err)
	}
	return l, nil
}

// RestoredDenials is the outcome of RestoreDenials.
type RestoredDenials struct {
	Denials []*lofamov1.Denial // of the next list: the own ones, then the restored ones
	Again   []Identity         // of the restored denials
	Halves  []Identity         // of denials that are not restored because they revoke one half of a node alone
	Extra   []Identity         // identities that only the own list revokes: perhaps withdrawn later
}

// RestoreDenials adds the denials of a kept list to the supervisors' own list (nil: none) that lost them. No own denial is
// lost or changed, and CheckHalves accepts the outcome. A restored denial refuses the same certificates as before. Its time of
// revocation is now: to the supervisors it is a new one, so they end sessions and judge nodes as after any other.
func RestoreDenials(own, kept *lofamov1.DenyList, now time.Time) RestoredDenials {
	out := RestoredDenials{Denials: slices.Clone(own.GetDenials())}
	identity := func(d *lofamov1.Denial) Identity {
		return Identity{Cluster: kept.GetCluster(), Role: Role(d.GetRole()), Name: d.GetName()}
	}
	add := func(to []Identity, id Identity) []Identity {
		if slices.Contains(to, id) {
			return to
		}
		return append(to, id)
	}
	known, revoked := make(map[string]bool), make(map[Identity]bool)
	for _, d := range own.GetDenials() {
		known[keyOf(d)] = true
	}
	lone := alone(kept)
	for i, d := range kept.GetDenials() {
		revoked[identity(d)] = true
		switch {
		case known[keyOf(d)]:
		case slices.Contains(lone, i):
			out.Halves = add(out.Halves, identity(d))
		default:
			known[keyOf(d)] = true
			d = proto.CloneOf(d)
			d.Revoked = timestamppb.New(now)
			out.Denials, out.Again = append(out.Denials, d), add(out.Again, identity(d))
		}
	}
	for _, d := range own.GetDenials() {
		if !revoked[identity(d)] {
			out.Extra = add(out.Extra, identity(d))
		}
	}
	return out
}
