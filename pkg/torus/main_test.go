package torus

import (
	"os"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }
