package host

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// withInterfaces returns a host half with two service interfaces.
func withInterfaces(t *testing.T) *hostHalf {
	t.Helper()
	h := &hostHalf{Common: half.Common{Log: slog.New(slog.DiscardHandler)}}
	for range 2 {
		s, err := direct.Listen("127.0.0.1:0", direct.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		h.nets = append(h.nets, s)
	}
	return h
}

// TestCutInterfaceCountsBlockedPackets checks that packets sent before the cut count as sent, and packets sent during it as blocked,
// only at the interface that was cut.
func TestCutInterfaceCountsBlockedPackets(t *testing.T) {
	h := withInterfaces(t)
	to := netip.MustParseAddrPort("127.0.0.1:9") // needs no listener
	serve := func(method, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.injectHandler().ServeHTTP(w, httptest.NewRequest(method, "/inject", strings.NewReader(body)))
		return w
	}
	send := func() {
		for _, s := range h.nets {
			if err := s.Send(to, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	send()
	if w := serve(http.MethodPost, `{"block_service":true,"interface":1}`); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	send()
	var got []socketCounters
	if err := json.Unmarshal(serve(http.MethodGet, "").Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := []socketCounters{{Sent: 2}, {Sent: 1, Blocked: 1}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !h.nets[1].Blocked() || h.nets[0].Blocked() || h.testDirect(selftest.Probe{Module: selftest.Module{Kind: selftest.Direct, Index: 1}}) {
		t.Error("a rail that is cut on purpose is tested")
	}
	if w := serve(http.MethodPut, "{}"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d, want %d", w.Code, http.StatusMethodNotAllowed)
	}
}

// TestCutsOfInterfaceAndServiceNetworkAreIndependent: the end of one cut leaves the other one.
func TestCutsOfInterfaceAndServiceNetworkAreIndependent(t *testing.T) {
	h := withInterfaces(t)
	handler := h.injectHandler()
	for _, tc := range []struct {
		body string
		want []bool
	}{
		{`{"block_service":true,"interface":1}`, []bool{false, true}},
		{`{"block_service":true}`, []bool{true, true}},
		{`{"block_service":false}`, []bool{false, true}},
		{`{"block_service":true}`, []bool{true, true}},
		{`{"block_service":false,"interface":1}`, []bool{true, true}},
		{`{"block_service":false}`, []bool{false, false}},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/inject", strings.NewReader(tc.body)))
		if got := []bool{h.nets[0].Blocked(), h.nets[1].Blocked()}; w.Code != http.StatusOK || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %d %s, blocked %v: want %v", tc.body, w.Code, w.Body, got, tc.want)
		}
	}
}
