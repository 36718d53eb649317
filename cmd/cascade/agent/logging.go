package agent

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// logging is what is logged.
type logging struct {
	text     string
	encoding string
	level    zapcore.Level
}

func (l *logging) bind(f *pflag.FlagSet) {
	f.StringVar(&l.text, "log-level", "info", "trace, debug, info or error; trace is debug")
	f.StringVar(&l.encoding, "log-encoding", "json", "json or console")
}

func (l *logging) check() error {
	text := l.text
	if text == "trace" {
		text = "debug"
	}
	if err := l.level.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("cannot use --log-level %q: use trace, debug, info or error", l.text)
	}
	if l.encoding != "json" && l.encoding != "console" {
		return fmt.Errorf("cannot use --log-encoding %q: use json or console", l.encoding)
	}
	return nil
}

// build makes the logger of the process. The libraries log by it, too.
func (l *logging) build() logr.Logger {
	encoder := zap.JSONEncoder
	if l.encoding == "console" {
		encoder = zap.ConsoleEncoder
	}
	logger := zap.New(encoder(func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.ISO8601TimeEncoder }),
		zap.Level(l.level), zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}
