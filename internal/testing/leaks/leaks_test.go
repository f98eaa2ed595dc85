package leaks

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestGoroutineThatEndsLateIsNoLeak(t *testing.T) {
	ignored := goleak.IgnoreCurrent()
	done := make(chan struct{})
	go func() { <-done }()
	if err := find(0, []goleak.Option{ignored}); err == nil {
		t.Error("a goroutine that waits is no leak")
	}
	time.AfterFunc(2*time.Second, func() { close(done) }) // goleak alone waits half a second
	if err := find(time.Minute, []goleak.Option{ignored}); err != nil {
		t.Error(err)
	}
}

func TestCodeOfFailedTestsIsKept(t *testing.T) {
	if code := Main(func() int { return 3 }); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
}
