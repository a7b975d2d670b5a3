#!/bin/sh
if [ "$RANK" = "$DEBUG_RANK" ]; then
    exec python -m debugpy --listen "127.0.0.1:${DEBUG_PORT:-5678}" --wait-for-client "$@"
fi
exec python "$@"
