package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// storedTokens are all tokens of a store.
type storedTokens struct {
	all   []store.JoinToken
	lists int // reads of all
}

func (s *storedTokens) Tokens(context.Context) ([]store.JoinToken, error) {
	s.lists++
	return s.all, nil
}

func (s *storedTokens) Token(_ context.Context, id string) (store.JoinToken, bool, error) {
	for _, t := range s.all {
		if t.ID == id {
			return t, true, nil
		}
	}
	return store.JoinToken{}, false, nil
}

// TestUnknownTokensKeepOutNobodyWithKnownOne: strangers send tokens that they made up, also with the id of a known one, from the address of
// a node that has a token, or its own certificate. The time stands still, so that no budget grows meanwhile.
func TestUnknownTokensKeepOutNobodyWithKnownOne(t *testing.T) {
	synctest.Test(t, unknownTokensKeepOutNobodyWithKnownOne)
}

func unknownTokensKeepOutNobodyWithKnownOne(t *testing.T) {
	known := pki.NewJoinToken([32]byte{})
	sum := known.Sum()
	tokens := &storedTokens{all: []store.JoinToken{{ID: known.ID, Sum: sum[:]}}}
	counts := map[string]int{}
	node := ""
	e := api.NewEnrolment(nil, api.EnrolmentConfig{Tokens: tokens, Member: func([]byte) (pki.Identity, error) {
		if node == "" {
			return pki.Identity{}, errors.New("another authority's")
		}
		return pki.NodeIdentity("c", fault.NodeID(node), fault.HalfHost), nil
	}, Count: func(result string) { counts[result]++ }, Logger: slog.New(slog.DiscardHandler)})
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1000}})
	enrol := func(token pki.JoinToken) codes.Code {
		_, err := e.Enrol(ctx, &lofamov1.EnrolRequest{Token: token.String()})
		return status.Code(err)
	}
	const flood = 1000
	for range flood {
		madeUp := pki.NewJoinToken([32]byte{})
		enrol(madeUp)
		madeUp.ID = known.ID
		enrol(madeUp)
	}
	if counts["dropped"] < flood {
		t.Fatalf("%d of %d requests with made-up tokens were dropped: this test shows nothing", counts["dropped"], 2*flood)
	}
	for range 100 { // nodes behind one address
		if code := enrol(known); code != codes.InvalidArgument { // it names no node
			t.Fatalf("a request with a known token: %s: want it looked at", code)
		}
	}
	for range flood {
		enrol(known)
	}
	if code := enrol(known); code != codes.ResourceExhausted {
		t.Errorf("after %d requests with one token: %s: want its budget used up", flood, code)
	}
	// A node shows its own certificate, from the same address.
	member := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1000},
		AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}})
	for of, want := range map[string]codes.Code{"n1": codes.InvalidArgument, "": codes.ResourceExhausted} {
		node = of
		if _, err := e.Enrol(member, &lofamov1.EnrolRequest{}); status.Code(err) != want {
			t.Errorf("a request with a certificate of node %q: %v: want %s", of, err, want)
		}
	}
	if tokens.lists > 60 {
		t.Errorf("%d requests read the list of tokens %d times: want once a second", 3*flood, tokens.lists)
	}
}
