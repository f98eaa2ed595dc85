package dnp

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestInjectionLeavesOtherFaultsOfLink: a request changes the faults that it states, and no others.
func TestInjectionLeavesOtherFaultsOfLink(t *testing.T) {
	d, _ := halfWithSession(t, agenttest.NodeConfig(t), grid.XPlus)
	for _, tc := range []struct {
		mangle string
		want   udplink.LinkFaults
	}{
		{`{"block_in":true,"block_out":true}`, udplink.LinkFaults{BlockIn: true, BlockOut: true}},
		{`{"corrupt_in":0.5}`, udplink.LinkFaults{BlockIn: true, BlockOut: true, CorruptIn: 0.5}},
		{`{"delay_out":"5ms","dup_out":0.25}`, udplink.LinkFaults{BlockIn: true, BlockOut: true, CorruptIn: 0.5, DupOut: 0.25, DelayOut: 5e6}},
		{`{"block_in":false,"block_out":false}`, udplink.LinkFaults{CorruptIn: 0.5, DupOut: 0.25, DelayOut: 5e6}},
		{`{"corrupt_in":0,"delay_out":"","dup_out":0}`, udplink.LinkFaults{}},
	} {
		w := httptest.NewRecorder()
		d.injectHandler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/inject",
			strings.NewReader(`{"dir":"X+","mangle":`+tc.mangle+`}`)))
		if got := d.links[grid.XPlus.Index()].Faults(); w.Code != http.StatusOK || got != tc.want {
			t.Errorf("%s: %d %s, faults %+v: want %+v", tc.mangle, w.Code, w.Body, got, tc.want)
		}
	}
}
