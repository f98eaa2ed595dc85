package web

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

func claimsOf(subject, id string, now time.Time) pki.WebClaims {
	return pki.WebClaims{Subject: subject, ID: id, Issued: now.Unix(), Expires: now.Add(pki.WebLoginLife).Unix()}
}

func open(t *testing.T, file string, now time.Time) *usedTokens {
	t.Helper()
	u, err := openUsed(file, now)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestTokenWorksOnceAcrossRestart(t *testing.T) {
	t.Parallel()
	file, now := filepath.Join(t.TempDir(), "s1", "web-used.json"), time.Now()
	u := open(t, file, now)
	c := claimsOf("viewer/ann", "x", now)
	if err := u.use(c, now); err != nil {
		t.Fatal(err)
	}
	for _, again := range []*usedTokens{u, open(t, file, now)} {
		if err := again.use(c, now.Add(time.Second)); !errors.Is(err, errUsed) {
			t.Errorf("the second use: %v: want that it was used", err)
		}
	}
	if err := open(t, file, now).use(claimsOf("viewer/ann", "y", now), now); err != nil {
		t.Errorf("another token: %v", err)
	}
}

func TestOneSubjectsTokensKeepNobodyOut(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := open(t, filepath.Join(t.TempDir(), "web-used.json"), now)
	refused := 0
	for i := range 10_000 {
		if err := u.use(claimsOf("viewer/ann", strconv.Itoa(i), now), now); err != nil {
			if !errors.Is(err, errManyUsed) {
				t.Fatal(err)
			}
			refused++
		}
	}
	if refused != 10_000-maxUsedSubject {
		t.Errorf("%d of 10,000 tokens of one subject were refused: want all but %d", refused, maxUsedSubject)
	}
	if err := u.use(claimsOf("operator/bob", "his", now), now); err != nil {
		t.Errorf("an operator after 10,000 tokens of a viewer: %v", err)
	}
	later := now.Add(pki.WebLoginLife + usedTime + time.Second)
	if err := u.use(claimsOf("viewer/ann", "later", later), later); err != nil {
		t.Errorf("once they are over: %v", err)
	}
	if len(u.seen) != 1 {
		t.Errorf("%d tokens are known: want the last one alone", len(u.seen))
	}
}

func TestDamagedListRefusesTokensThatItMayHaveHeld(t *testing.T) {
	t.Parallel()
	file, now := filepath.Join(t.TempDir(), "web-used.json"), time.Now()
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := openUsed(file, now)
	if err == nil {
		t.Error("a damaged file is read without an error")
	}
	if err := u.use(claimsOf("viewer/ann", "x", now), now); err == nil {
		t.Error("a token from before the start is taken")
	}
	later := now.Add(pki.WebSkew + time.Second)
	if err := u.use(claimsOf("viewer/ann", "y", later), later); err != nil {
		t.Errorf("a token from after the start: %v", err)
	}
}

func TestTokenIsRefusedWhenItCannotBeNoted(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	u := open(t, filepath.Join(dir, "in-the-way", "web-used.json"), now)
	if err := os.WriteFile(filepath.Join(dir, "in-the-way"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := u.use(claimsOf("viewer/ann", "x", now), now); err == nil {
		t.Error("a token is taken that could not be noted")
	}
}

// TestUsedLoginStaysRefusedAfterDamagedList logs in over HTTP, and again with the same token at a supervisor that restarted with a damaged
// list.
func TestUsedLoginStaysRefusedAfterDamagedList(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "web-used.json")
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	p := newPair(t)
	restart := func() {
		t.Helper()
		h := httptest.NewServer(p.page(Config{Self: "s1", Now: clock, Used: file}, p.registry))
		t.Cleanup(h.Close)
		p.pages["s1"] = h.URL
	}
	restart()
	token := p.loginToken()
	if code, _ := p.login("s1", token); code != http.StatusNoContent {
		t.Fatalf("the first use: %d: want %d", code, http.StatusNoContent)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(time.Second))
	restart()
	for _, later := range []time.Duration{time.Second, pki.WebSkew + 2*time.Second} {
		ahead.Store(int64(later))
		if code, _ := p.login("s1", token); code != http.StatusUnauthorized {
			t.Errorf("%v after the first use, and after a restart with a damaged list: %d: want %d", later, code, http.StatusUnauthorized)
		}
	}
	token, err := pki.NewWebLogin(p.signer(ann), "s1", clock())
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := p.login("s1", token); code != http.StatusNoContent {
		t.Errorf("a token that was signed later than %v after the restart: %d: want %d", pki.WebSkew, code, http.StatusNoContent)
	}
}

// FuzzUsedFile: for any file content, a token issued long after the start works once, and never again after a
// restart.
func FuzzUsedFile(f *testing.F) {
	f.Add([]byte(`{"x":{"sub":"viewer/ann","until":1}}`))
	f.Add([]byte(`{"y":{"sub":"viewer/ann","until":9223372036854775807}}`))
	f.Add([]byte("null"))
	f.Add([]byte("["))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, now := filepath.Join(t.TempDir(), "web-used.json"), time.Now()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		u, _ := openUsed(file, now)
		later := now.Add(pki.WebSkew + time.Second)
		c := claimsOf("operator/bob", pki.NewWebID(), later)
		if err := u.use(c, later); err != nil {
			if !errors.Is(err, errTableFull) && !errors.Is(err, errManyUsed) {
				t.Fatal(err)
			}
			return
		}
		again, err := openUsed(file, later)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range []*usedTokens{u, again} {
			if err := u.use(c, later); !errors.Is(err, errUsed) {
				t.Fatalf("a token works twice: %v", err)
			}
		}
	})
}
