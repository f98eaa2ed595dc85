package client_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

func piece(data string) *lofamov1.GetBundleResponse {
	return &lofamov1.GetBundleResponse{Data: []byte(data)}
}

func progress(received uint64, complete bool) *lofamov1.GetBundleResponse {
	return &lofamov1.GetBundleResponse{Progress: &lofamov1.BundleProgress{Name: "b", Size: 8, Received: received, Via: "direct",
		Complete: complete}}
}

// TestBundleGoesOnElsewhere: one supervisor fails in the middle, one is busy, one never begins; the next one starts the
// transfer again.
func TestBundleGoesOnElsewhere(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	falls, busy, silent, good := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m), clienttest.Serve(t, dir,
		m), clienttest.Serve(t, dir, m)
	falls.ServeBundle(&clienttest.Bundle{
		Responses: []*lofamov1.GetBundleResponse{progress(0, false), piece("lost")}, Err: status.Error(codes.Unavailable, "stopping"),
	})
	busy.Refuse(status.Error(codes.ResourceExhausted, "busy"))
	good.ServeBundle(&clienttest.Bundle{Responses: []*lofamov1.GetBundleResponse{progress(0, false), piece("abcdefgh"), progress(8, true)}})
	c := dialWithin(t, 5*time.Second, dir, deadAddress(t), falls.Address, busy.Address, silent.Address, good.Address)
	var got []string
	err := c.GetBundle(bounded(t), &lofamov1.GetBundleRequest{Node: "x"}, func(r *lofamov1.GetBundleResponse) error {
		got = append(got, string(r.GetData()))
		return nil
	})
	if err != nil || strings.Join(got, "|") != "|lost||abcdefgh|" {
		t.Errorf("%v: %q", err, got)
	}
}

func TestBundleRefusals(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	first, second := clienttest.Serve(t, dir, m), clienttest.Serve(t, dir, m)
	never := &clienttest.Bundle{}
	second.ServeBundle(never)
	c := dial(t, dir, first.Address, second.Address)
	full := errors.New("disk full")
	for _, tc := range []struct {
		name   string
		bundle *clienttest.Bundle
		handle error
		code   codes.Code
		text   string
	}{
		{"the transfer fails", &clienttest.Bundle{Err: status.Error(codes.Unavailable, "nothing for 30s"), Failed: true}, nil,
			codes.Unavailable, "nothing for 30s"},
		{"no such node", &clienttest.Bundle{Err: status.Error(codes.NotFound, "none")}, nil, codes.NotFound, "none"},
		{"no end", &clienttest.Bundle{Responses: []*lofamov1.GetBundleResponse{progress(0, false)}}, nil, codes.Unknown,
			"without saying that it is complete"},
		{"the handler fails", &clienttest.Bundle{Responses: []*lofamov1.GetBundleResponse{progress(0, false)}}, full, codes.Unknown, "disk full"},
	} {
		first.ServeBundle(tc.bundle)
		err := c.GetBundle(bounded(t), &lofamov1.GetBundleRequest{Node: "x"}, func(*lofamov1.GetBundleResponse) error { return tc.handle })
		if err == nil || status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %s with %q", tc.name, err, tc.code, tc.text)
		}
	}
	if never.Asked != nil {
		t.Error("another supervisor was asked")
	}
	first.Refuse(status.Error(codes.Unavailable, "x"))
	second.Refuse(status.Error(codes.Unavailable, "y"))
	var none *client.NoAnswerError
	err := c.GetBundle(bounded(t), &lofamov1.GetBundleRequest{Node: "x"}, func(*lofamov1.GetBundleResponse) error { return nil })
	if !errors.As(err, &none) || len(none.Tried) != 2 {
		t.Errorf("%v", err)
	}
}
