package executor_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
)

// TestAnswerOfAnotherServiceIsNotQuoted: a port of another service answers with its banner, which no error shows.
func TestAnswerOfAnotherServiceIsNotQuoted(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = c.Write([]byte("SSH-2.0-hunter2\r\n"))
		_ = c.Close()
	}))
	defer s.Close()
	caller, err := executor.NewHTTPCaller(s.URL, config.ClientTLS{}, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = caller.Post(t.Context(), http.Header{}, []byte("{}"), nil)
	if err == nil || err.Error() != "the answer is not HTTP" {
		t.Errorf("%v: want %q", err, "the answer is not HTTP")
	}
}
