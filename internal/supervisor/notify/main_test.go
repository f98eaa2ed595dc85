package notify_test

import (
	"os"
	"testing"

	"github.com/lofamo/lofamo/internal/fixedseed"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }
