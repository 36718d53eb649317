//go:build !linux || (!amd64 && !arm64)

package worker

import (
	"runtime"
	"time"
)

func confine(int64) error { return Supported(runtime.GOOS, runtime.GOARCH) }

func allowTime(time.Duration) error { return nil }

func endInTime() {}
