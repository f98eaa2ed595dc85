package dnp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A request that changes nothing does not wait until a newer number is on disk, because that is not required.
func TestKeptMaskLacks(t *testing.T) {
	on := keptMask{state: chanmask.State{Own: chanmask.All, Held: 1, Ordered: chanmask.All, Number: 3}}
	renumbered, changed := on.state, on.state
	renumbered.Number, changed.Held = 7, 2
	failed := keptMask{state: on.state, err: os.ErrPermission}
	if on.lacks(on.state) || on.lacks(renumbered) || !on.lacks(changed) || !failed.lacks(on.state) {
		t.Errorf("same %t, renumbered %t, changed %t, not taken by the disk %t", on.lacks(on.state), on.lacks(renumbered), on.lacks(changed),
			failed.lacks(on.state))
	}
}

// A person's mask that a full disk refused is in force, but a restart undoes it. The same request again stores it, once the disk has room.
func TestRepeatedMaskRequestStoresMask(t *testing.T) {
	d, _ := halfWithSession(t, agenttest.NodeConfig(t), grid.XPlus)
	d.masks = make(newest[chanmask.State], 1)
	disk, stored := make(chan error), make(chan chanmask.State, 2)
	go func() {
		for err := range disk {
			s := <-d.masks
			if err == nil {
				stored <- s
			}
			d.noteKept(s, err)
		}
	}()
	h := d.maskHandler(t.Context())
	ask := func(err error) *httptest.ResponseRecorder {
		disk <- err
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/mask", strings.NewReader(`{"mask":["X+"],"reason":"a bad cable"}`)))
		return w
	}
	if w := ask(errors.New("no space left")); w.Code == http.StatusOK || !strings.Contains(w.Body.String(), "no space left") {
		t.Errorf("full disk: %d %s", w.Code, w.Body)
	}
	if w := ask(nil); w.Code != http.StatusOK {
		t.Fatalf("again, with room on the disk: %d %s", w.Code, w.Body)
	}
	close(disk)
	if s := <-stored; s.InForce().Usable(grid.XPlus) {
		t.Errorf("stored: %s", s.InForce())
	}
}
